"""`tandem generate`: completions on the terminal, from an engine in this process."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tandem.config import EngineConfig
from tandem.request import RequestOutput, SamplingParams


def run(prompts: Sequence[str], parameters: dict[str, str], sampling: dict[str, Any]) -> None:
    """Streams a completion of every prompt to stdout, its figures to stderr."""
    notes = Console(stderr=True, highlight=False)
    # Both before the models are loaded: a bad value is reported at once.
    config = EngineConfig.from_triton_parameters(parameters, Path.cwd())
    params = SamplingParams(**sampling)
    with notes.status("Loading the models"):
        from tandem import Engine

        engine = Engine(config)
    with engine:
        for prompt in prompts:
            print(prompt, end="", flush=True)
            began = time.perf_counter()
            count, last = 0, None
            for output in engine.stream(prompt, params):
                print(output.text, end="", flush=True)
                count += len(output.token_ids)
                last = output
            print()
            if last:
                seconds = time.perf_counter() - began
                notes.print(_figures(last, count, seconds), style="dim", soft_wrap=True)
    sys.stdout.flush()


def _figures(last: RequestOutput, count: int, seconds: float) -> str:
    stats = last.stats
    line = f"{count} tokens, {count / seconds:.1f} tokens/s, {last.finish_reason}"
    if stats.drafted:
        line += (
            f"; accepted {stats.accepted} of {stats.drafted} drafted "
            f"({stats.acceptance_rate:.0%}), {stats.mean_acceptance_length:.2f} tokens a round"
        )
    return line
