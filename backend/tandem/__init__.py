"""Tandem: speculative decoding with a draft and a target that ride together.

Nothing in this package knows Triton, except what is called `triton_…`, `serving` and `front`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem.config import EngineConfig
from tandem.request import RequestOutput, SamplingParams

if TYPE_CHECKING:
    from tandem.in_process import Engine

__all__ = ["Engine", "EngineConfig", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """`Engine` brings torch along, so it is imported when first asked for."""
    if name == "Engine":
        from tandem.in_process import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
