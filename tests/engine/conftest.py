"""Tiny checkpoints, made once a session, and engines over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from tandem import Engine, EngineConfig
from tandem.cpu.library import load_kernels
from tests.engine.checkpoints import make_checkpoint, perturb_checkpoint

torch.set_num_threads(1)  # tiny models: a second thread only waits for the first

settings.register_profile("tandem", derandomize=True, deadline=None)
settings.load_profile("tandem")

SHARPNESS = 3.0  # the most likely token has a probability of 0.4 on average
ENGINE_DEFAULTS = {
    "devices": "cpu",
    "num_threads": 1,
    "kv_cache_memory": "4MiB",
    "seed": 0,
    "adaptive_speculation": False,  # every round drafts, or it could not be tested
}


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with 96 tokens, 256 positions and no end of sequence."""
    return make_checkpoint(tmp_path_factory.mktemp("target"), seed=1, scale=SHARPNESS)


@pytest.fixture(scope="session")
def good_draft(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with slightly different weights: most drafted tokens are kept, not all."""
    folder = tmp_path_factory.mktemp("drafts") / "good"
    return perturb_checkpoint(target, folder, noise=0.03)


@pytest.fixture(scope="session")
def bad_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has nothing to do with the target, smaller and of another family."""
    folder = tmp_path_factory.mktemp("drafts") / "bad"
    return make_checkpoint(
        folder, "qwen2", seed=2, scale=SHARPNESS, hidden_size=32, num_hidden_layers=1
    )


@pytest.fixture
def engine(target: Path) -> Iterator[Callable[..., Engine]]:
    """Makes engines over the target; each is shut down, and its KV checked, after the test."""
    made: list[Engine] = []

    def make(**parameters: Any) -> Engine:
        values = {"model": target} | ENGINE_DEFAULTS | parameters
        made.append(Engine(EngineConfig(**values)))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is computed by torch, as on a machine without a compiler."""
    for user in ("library", "linear", "sampling"):
        monkeypatch.setattr(f"tandem.cpu.{user}.load_kernels", lambda: None)


@pytest.fixture(params=["kernels", "torch"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which a pass is computed on a CPU."""
    if request.param == "torch":
        without_kernels(monkeypatch)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arithmetic that does not depend on how many rows are computed together: in float64, rounded.

    Sums of another order then differ by too little to be seen, and the same text must have the same
    KV bit for bit, however it came about.
    """

    def doubled(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def widened(value: Any) -> Any:
            return value.double() if isinstance(value, torch.Tensor) else value

        def inner(*arguments: Any, **named: Any) -> torch.Tensor:
            wide = {name: widened(value) for name, value in named.items()}
            return call(*map(widened, arguments), **wide).float()

        return inner

    for name in ("linear", "silu", "rms_norm", "scaled_dot_product_attention"):
        monkeypatch.setattr(torch.nn.functional, name, doubled(getattr(torch.nn.functional, name)))

    def rotate(x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> None:
        cos, sin = (factor.double() for factor in rope)
        wide = x.double()
        x.copy_(wide * cos + wide.roll(x.shape[-1] // 2, -1) * sin)

    monkeypatch.setattr("tandem.models.decoder.rotate_", rotate)
    without_kernels(monkeypatch)


@pytest.fixture
def anew() -> Iterator[None]:
    """The kernels' library is looked for once in a process."""
    load_kernels.cache_clear()
    yield
    load_kernels.cache_clear()
