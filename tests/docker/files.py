"""Of docker/, what several tests read."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
IMAGES = sorted(FOLDER.glob("*.Dockerfile"))
PROBES = "readiness", "liveness"


def compose(name="compose.yml"):
    return yaml.safe_load((FOLDER / name).read_text())["services"]


def manifests(*wanted):
    """With the lines that its head says are for what is wanted."""
    text = (FOLDER / "kubernetes.yml").read_text()
    for one in wanted:
        assert f"#   sed 's/#{one}: //" in text
        text = text.replace(f"#{one}: ", "")
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def pod(*wanted):
    return manifests(*wanted)["Deployment"]["spec"]["template"]["spec"]


def container(*wanted):
    """Triton's."""
    return containers(*wanted)["triton"]


def containers(*wanted):
    return {one["name"]: one for one in pod(*wanted)["containers"]}
