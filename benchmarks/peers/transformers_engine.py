"""Hugging Face transformers: `generate`, plain, assisted, or with prompt lookup."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from benchmarks.peers.worker import Answer, Case, Generate, Prompts, computes_in_bfloat16, serve


def load(case: Case) -> Generate:
    """In bfloat16 where the CPU computes it, otherwise in float32, which is faster then."""
    torch.set_num_threads(case.threads)
    dtype = torch.bfloat16 if computes_in_bfloat16() else torch.float32
    model = _model(case.target, dtype)
    settings: dict[str, Any] = {}
    if case.method == "draft_model":
        assistant = settings["assistant_model"] = _model(case.draft, dtype)
        assistant.generation_config.num_assistant_tokens = case.tokens
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0
    elif case.method == "ngram":
        settings |= {"prompt_lookup_num_tokens": case.tokens, "max_matching_ngram_size": 5}

    @torch.inference_mode()
    def generate(prompts: Prompts, new_tokens: int) -> Answer:
        (length,) = {len(prompt) for prompt in prompts}
        found = model.generate(
            torch.tensor(prompts),
            attention_mask=torch.ones(len(prompts), length, dtype=torch.int64),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            **settings,
        )
        return Answer(found[:, length:].tolist())

    return generate


def _model(folder: str, dtype: torch.dtype) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


if __name__ == "__main__":
    serve(lambda: transformers.__version__, load)
