"""The CPU kernels as other processors have them, or broken on purpose."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.cpu import library
from tandem.cpu.library import load_kernels

OLDER = "x86-64-v3"
"""Processors with neither registers of 16 floats nor a matrix unit, as many are."""
WIDE = "x86-64-v4"
"""Registers of 16 floats, and nothing for bfloat16."""
TWOS = "cooperlake"
"""Products of two columns at once, and no matrix unit."""
TILES = "sapphirerapids"
"""A matrix unit."""
NEEDS = {OLDER: "avx2", WIDE: "avx512vl", TWOS: "avx512_bf16", "native": ""}
"""What /proc/cpuinfo says of a processor that runs what is compiled for these."""


def has(feature):
    """Whether this processor has it."""
    return f" {feature}" in Path("/proc/cpuinfo").read_text(encoding="utf-8")


@contextmanager
def compiled_for(processor):
    """What `load_kernels` gives meanwhile."""
    if not has(NEEDS[processor]):
        pytest.skip(f"this processor has no {NEEDS[processor]}")
    flags = (flag.replace("native", processor) for flag in library.FLAGS)
    with _compiled_with("FLAGS", tuple(flags)) as kernels:
        yield kernels


@contextmanager
def bent(folder, header, *change):
    """Meanwhile the kernels have another text in one place of a header. change: old, new."""
    shutil.copytree(library.SOURCE.parent, folder)
    path = folder / header
    text = path.read_text(encoding="utf-8")
    assert text.count(change[0]) == 1
    path.write_text(text.replace(*change), encoding="utf-8")
    with _compiled_with("SOURCE", folder / library.SOURCE.name) as kernels:
        assert kernels is not None
        yield


@contextmanager
def _compiled_with(name, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, name, value)
        load_kernels.cache_clear()
        try:
            yield load_kernels()
        finally:
            load_kernels.cache_clear()
