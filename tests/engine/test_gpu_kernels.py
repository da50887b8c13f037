"""The GPU's kernels in Triton's interpreter, against plain implementations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.gpu_checks import checks

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def failures(target):
    """By check. In a process of its own: the interpreter is chosen when Triton is imported."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.engine.gpu_checks", target],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.mark.parametrize("check", checks(""))
def test_by_the_interpreter(check, failures):
    assert failures.get(check) is None
