"""Names that are said to be vLLM's are in the vLLM that is installed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.vllm


def test_metrics_that_are_said_to_be_vllms_are():
    said = set(re.findall(r"`(vllm:\w+)`", (ROOT / "docs" / "operations.md").read_text()))
    [vllm] = (ROOT / ".venv-vllm" / "lib").glob("python3*/site-packages/vllm")
    paths = (vllm / "v1" / "metrics").glob("*.py"), [vllm / "v1" / "spec_decode" / "metrics.py"]
    sources = [path.read_text() for found in paths for path in found]
    known = set(re.findall(r'"(vllm:\w+)"', "".join(sources)))
    assert len(said) > 15
    assert said <= known
