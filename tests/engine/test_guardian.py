"""A model's process that its Triton has left behind is ended, with what it started; no other."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import psutil
import pytest

from tandem.guardian_process import GRACE_S
from tandem.killing import FAMILY, lives

WAIT_S = 20.0
STUB = f"""
import subprocess, sys
from pathlib import Path
from tandem.guardian import Guardian
from tandem.leftovers import note_shared
one = Guardian()
Path("/dev/shm", sys.argv[1]).touch()
note_shared(one.family, "vllm-" + sys.argv[1])
Path("/dev/shm", "vllm-" + sys.argv[1] + "-tp").touch()
engine = subprocess.Popen(["sleep", "60"], env={{"{FAMILY}": str(one.family)}})
print(one.family, engine.pid, one.process.pid, flush=True)
sys.stdin.read()
"""


class Model(NamedTuple):
    """A process as a stub of Triton's, and what belongs to it."""

    stub: subprocess.Popen
    region: Path
    family: Path
    engine: psutil.Process
    guardian: psutil.Process

    @property
    def alive(self):
        """Which of the processes."""
        living = [one.pid for one in (self.engine, self.guardian) if lives(one)]
        return living if self.stub.poll() is not None else [self.stub.pid, *living]

    @property
    def files(self):
        shared = self.region.with_name(f"vllm-{self.region.name}-tp")
        return [one for one in (self.region, self.family, shared) if one.exists()]

    def wait_ended(self):
        limit = time.monotonic() + WAIT_S
        while self.alive or self.files:
            assert time.monotonic() < limit
            time.sleep(0.05)


@pytest.fixture
def triton():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def model_of(tmp_path):
    """Starts one of the Triton that its arguments name."""
    models, script = [], tmp_path / "stub.py"
    script.write_text(STUB)

    def start(said, **pipes):
        region = f"tandem-{uuid4()}"
        # as Triton writes them: model, region, two sizes, its own process id, more
        command = [sys.executable, script, region, "1", "1", said, "more"]
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL} | pipes
        stub = subprocess.Popen(command, stdout=subprocess.PIPE, **pipes)
        family, engine, guardian = stub.stdout.readline().decode().split()
        both = [psutil.Process(int(pid)) for pid in (engine, guardian)]
        models.append(Model(stub, Path("/dev/shm", region), Path(family), *both))
        return models[-1]

    yield start
    for model in models:
        with model.stub as stub:
            stub.kill()
        with suppress(psutil.NoSuchProcess):
            model.engine.kill()
        model.region.unlink(missing_ok=True)
        model.wait_ended()


def test_who_is_left_behind_is_ended_with_what_it_started_and_shared(triton, model_of):
    model, other = model_of(str(triton.pid)), model_of(str(psutil.Process().pid))
    time.sleep(GRACE_S + 0.5)
    assert len(model.alive) == 3
    triton.kill()
    triton.wait()
    model.wait_ended()
    assert model.stub.wait() == -9
    assert len(other.alive) == 3
    assert len(other.files) == 3


def test_who_started_when_triton_had_gone_is_ended(triton, model_of):
    triton.kill()
    triton.wait()
    model = model_of(str(triton.pid))
    model.wait_ended()
    assert model.stub.wait() == -9


def test_nobody_has_to_read_what_it_says(triton, model_of):
    """Whoever did may have gone with Triton."""
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        model = model_of(str(triton.pid), stderr=reader.stdin)
        reader.wait()
    triton.kill()
    model.wait_ended()


def test_who_ends_by_itself_is_given_the_time(triton, model_of):
    model = model_of(str(triton.pid))
    triton.kill()
    time.sleep(GRACE_S / 2)
    assert len(model.alive) == 3
    model.stub.communicate()
    model.wait_ended()
    assert model.stub.returncode == 0


def test_what_a_stub_leaves_behind_is_ended_while_triton_goes_on(triton, model_of):
    """But what it shared is Triton's then."""
    model = model_of(str(triton.pid))
    model.stub.kill()
    model.stub.wait()
    limit = time.monotonic() + WAIT_S
    while model.alive:
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert triton.poll() is None
    assert model.files == [model.region]
    model.region.unlink()


def test_who_is_not_told_of_a_triton_lives_until_it_ends_by_itself(model_of):
    model = model_of("?")
    time.sleep(GRACE_S + 0.5)
    assert len(model.alive) == 3
