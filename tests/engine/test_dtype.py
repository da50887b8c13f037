"""Which number format `dtype: auto` is."""

import pytest
import torch

from tandem import EngineConfig
from tandem.assembly import choose_dtype
from tandem.models.config import read_model_config
from tandem.models.layers import computes_in
from tandem.runners.placement import place
from tests.engine.checkpoints import make_checkpoint


@pytest.fixture
def stored(tmp_path):
    """A checkpoint that says bfloat16."""
    folder = make_checkpoint(tmp_path / "stored")
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"float32"', '"bfloat16"'))
    return folder


@pytest.mark.parametrize(
    ("native", "kernels", "chosen"),
    [
        (True, False, torch.bfloat16),
        (False, True, torch.bfloat16),  # read as it is, computed in float32
        (False, False, torch.float32),
    ],
)
def test_auto_is_the_checkpoints_unless_the_cpu_would_emulate_it(
    stored, monkeypatch, native, kernels, chosen
):
    monkeypatch.setattr("tandem.assembly.computes_in", lambda dtype: native)
    monkeypatch.setattr("tandem.assembly.has_kernels", lambda *shape: kernels)
    for dtype, expected in (("auto", chosen), ("bfloat16", torch.bfloat16)):
        config = EngineConfig(model=stored, devices="cpu", dtype=dtype)
        assert choose_dtype(config, read_model_config(stored), place(config)) == expected


def test_ranks_that_share_a_cpu_compute_in_float32(stored, monkeypatch):
    monkeypatch.setattr("tandem.assembly.computes_in", lambda dtype: False)
    config = EngineConfig(model=stored, devices="cpu", tensor_parallel_size=2)
    assert choose_dtype(config, read_model_config(stored), place(config)) == torch.float32


def test_every_processor_computes_in_float32():
    assert computes_in("float32")
