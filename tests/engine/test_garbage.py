"""Garbage is looked for seldom while an engine loads, and as ever behind that."""

import gc
import os
import subprocess
import sys

import pytest

from tandem.garbage import look_as_usual, look_seldom
from tandem.service import EngineService
from tandem.vllm import endings
from tests.engine.sinks import config_of, submit

NOTING = """
import gc, runpy, sys
from pathlib import Path
sys.path[:0] = [{backend!r}]
from tandem.engine import NativeEngine

def noting(method):
    def run(*arguments):
        with Path({notes!r}).open("a") as notes:
            print(method.__name__, gc.get_threshold()[0], file=notes)
        return method(*arguments)
    return run

NativeEngine.__init__ = noting(NativeEngine.__init__)
NativeEngine.step = noting(NativeEngine.step)
sys.argv = sys.argv[2:]
runpy.run_module("tandem.engine_main", run_name="__main__")
"""


@pytest.fixture
def usual():
    yield gc.get_threshold()[0]
    look_as_usual()


def test_an_engine_that_steps_looks_as_usual(target, tmp_path, usual):
    notes, script, python = (tmp_path / name for name in ("notes", "script.py", "python"))
    backend = endings.__file__.rpartition("/tandem/")[0]
    script.write_text(NOTING.format(backend=backend, notes=str(notes)))
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    service = EngineService(config_of(target), str(python))
    try:
        submit(service, [1, 2, 3]).wait()
    finally:
        service.stop()
    begun, *steps = [line.split() for line in notes.read_text().splitlines()]
    assert begun[0] == "__init__"
    assert int(begun[1]) > 100 * usual
    assert {tuple(step) for step in steps} == {("step", str(usual))}


def test_so_do_processes_of_vllm(usual, monkeypatch):
    monkeypatch.delenv(endings.SCRATCH, raising=False)
    look_seldom()
    endings.register()
    assert gc.get_threshold()[0] == usual


def test_what_multiprocessing_imports_first_brings_nothing_along():
    """It would be looked through for garbage as often as ever."""
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import tandem.engine_main, gc, sys; "
            "print(gc.get_threshold()[0], 'torch' in sys.modules)",
        ],
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    seldom, brings_torch = said.stdout.split()
    assert int(seldom) > 100 * gc.get_threshold()[0]
    assert brings_torch == "False"
