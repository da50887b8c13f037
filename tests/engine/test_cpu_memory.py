"""CPU kernels keep to the memory that they have asked for, and to what they have written there."""

import subprocess
import sys
from pathlib import Path


def test_nothing_behind_its_end_is_touched(tmp_path):
    command = [sys.executable, "-m", "tests.engine.guarded", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("all within\n"), (done.returncode, done.stderr[-2000:])
