"""OpenVINO GenAI: its pipeline for one stream, its continuous batching for more and for drafts."""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.peers.worker import Answer, Case, Generate, Prompts, serve

CACHE_GB = 1
MOST_TOKENS = 1024  # of a step, as in our engine


def load(case: Case) -> Generate:
    """The models were exported with fp16 weights; the rest is as OpenVINO chooses for the CPU."""
    settings: dict[str, object] = {"INFERENCE_NUM_THREADS": case.threads}
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_seqs = case.most
    scheduler.max_num_batched_tokens = MOST_TOKENS
    scheduler.enable_prefix_caching = False
    if case.method == "none" and case.most == 1:
        settings["scheduler_config"] = scheduler
        return _single(genai.LLMPipeline(case.target, "CPU", **settings))
    if case.method == "draft_model":
        settings["draft_model"] = genai.draft_model(case.draft, "CPU", **settings)
    elif case.method == "ngram":
        settings["prompt_lookup"] = True
    pipeline = genai.ContinuousBatchingPipeline(
        case.target, scheduler_config=scheduler, device="CPU", properties=settings
    )

    def generate(prompts: Prompts, new_tokens: int) -> Answer:
        config = _config(new_tokens)
        if case.method != "none":
            config.num_assistant_tokens = case.tokens
        if case.method == "ngram":
            config.max_ngram_size = 5
        found = pipeline.generate([_tensor(ids) for ids in prompts], [config] * len(prompts))
        return Answer([list(one.m_generation_ids[0]) for one in found])

    return generate


def _single(pipeline: genai.LLMPipeline) -> Generate:
    def generate(prompts: Prompts, new_tokens: int) -> Answer:
        (prompt,) = prompts
        return Answer([list(pipeline.generate(_tensor(prompt), _config(new_tokens)).tokens[0])])

    return generate


def _config(new_tokens: int) -> genai.GenerationConfig:
    config = genai.GenerationConfig()
    config.max_new_tokens = new_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def _tensor(ids: list[int]) -> openvino.Tensor:
    return openvino.Tensor(np.array([ids], np.int64))


if __name__ == "__main__":
    serve(genai.get_version, load)
