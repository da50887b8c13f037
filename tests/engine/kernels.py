"""The CPU kernels as other processors have them, or broken on purpose."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

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


def stored(owner, data=None):
    """[layers, slots, kv_width] of a runner's cache, or `data` in its order, slot by slot."""
    data = owner.cache.data if data is None else data
    if owner.by_kernels is None:
        return data
    config, words = owner.cache.config, 4 // data.element_size()
    layers, size, heads = len(data), config.head_dim, config.num_kv_heads
    keys, values = data.view(layers, -1, 2, heads, 16 * size).unbind(2)
    keys = keys.view(layers, -1, heads, size // words, 16, words).permute(0, 1, 4, 2, 3, 5)
    values = values.view(layers, -1, heads, 16 // words, size, words).permute(0, 1, 3, 5, 2, 4)
    parts = [part.reshape(layers, -1, heads * size) for part in (keys, values)]
    return torch.cat(parts, -1)
