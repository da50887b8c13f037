"""What perf_analyzer is given: the requests of one measurement, and when they are sent."""

from __future__ import annotations

import json
import random
from typing import Any

from tools.load_profiles.profile import Load, Profile

_SEED = 0  # the same lengths and arrivals, with and without speculation


def requests(
    profile: Profile, prompts: list[str], draft_tokens: int, count: int, mark: str
) -> dict[str, Any]:
    """As perf_analyzer's --input-data wants them. `mark` makes prompts differ from those of other
    measurements."""
    lengths = random.Random(_SEED)
    data = []
    for number in range(count):
        text = prompts[number % len(prompts)]
        sampling = profile.sampling | {
            "max_tokens": lengths.randint(*profile.output_tokens),
            "ignore_eos": True,
        }
        data.append(
            {
                "text_input": [f"# {mark} {number}\n{text}" if profile.fresh_prompts else text],
                "stream": [True],
                "sampling_parameters": [json.dumps(sampling)],
                "num_draft_tokens": [draft_tokens],
                "return_num_output_tokens": [True],
                "return_speculation_stats": [True],
            }
        )
    return {"data": data}


def intervals(profile: Profile, load: Load) -> list[int]:
    """Microseconds between the requests of a rate; they add up to exactly this rate."""
    draws = random.Random(_SEED)
    bursts = -(-profile.sent(load) // profile.burst)
    gaps = [draws.expovariate(1) if profile.arrivals == "poisson" else 1.0 for _ in range(bursts)]
    scale = 1e6 * bursts * profile.burst / load.value / sum(gaps)
    together = [0] * (profile.burst - 1)
    return [each for gap in gaps for each in (*together, round(gap * scale))]
