"""The GPU's kernels in Triton's interpreter, against plain implementations."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.engine.gpu_checks import checks

ROOT = Path(__file__).parents[2]
CHECKS = tuple(checks(""))


@pytest.fixture(scope="module")
def failures(target):
    """By check; called with those of one process."""

    @cache
    def found(*names):
        """In a process of its own: the interpreter is chosen when Triton is imported."""
        run = subprocess.run(
            [sys.executable, "-m", "tests.engine.gpu_checks", target, *names],
            cwd=ROOT,
            env=os.environ | {"TRITON_INTERPRET": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return json.loads(run.stdout)

    return found


@pytest.mark.parametrize("check", CHECKS)
def test_by_the_interpreter(check, failures):
    """Rounds take a minute: each has a process. The others share one."""
    alone = "rounds" in check
    names = [check] if alone else [one for one in CHECKS if "rounds" not in one]
    assert failures(*names).get(check) is None
