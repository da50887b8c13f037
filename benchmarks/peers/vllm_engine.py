"""vLLM, as its own `LLM` class runs it."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.worker import Answer, Case, Generate, Prompts, computes_in_bfloat16, serve


def load(case: Case) -> Generate:
    """In bfloat16 where the CPU computes it, otherwise in float32, which is faster then."""
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND=f"0-{case.threads - 1}",
        VLLM_PLUGINS="",
    )
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    supported = computes_in_bfloat16()
    engine = LLM(
        case.target,
        dtype="bfloat16" if supported else "float32",
        max_model_len=1024,
        max_num_seqs=case.most,
        max_num_batched_tokens=1024,
        enable_prefix_caching=False,
        speculative_config=_speculative(case),
    )

    def generate(prompts: Prompts, new_tokens: int) -> Answer:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        found = engine.generate(
            [TokensPrompt(prompt_token_ids=ids) for ids in prompts], params, use_tqdm=False
        )
        return Answer([list(one.outputs[0].token_ids) for one in found])

    return generate


def _speculative(case: Case) -> dict[str, Any] | None:
    if case.method == "none":
        return None
    values: dict[str, Any] = {"num_speculative_tokens": case.tokens}
    if case.method == "draft_model":
        return values | {"method": "draft_model", "model": case.draft}
    return values | {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}


def version() -> str:
    """Of the installed package."""
    import vllm

    return str(vllm.__version__)


if __name__ == "__main__":
    serve(version, load)
