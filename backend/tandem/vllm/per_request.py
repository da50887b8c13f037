"""What vLLM lacks for one request among others: a plug-in of vLLM.

- A longest draft of its own, 0 for none: `extra_args={"num_draft_tokens": k}` of vLLM's
  SamplingParams. vLLM has one length for all requests. A decoding step in which nobody wants a
  draft does not pay for one.
- `min_p` and `logit_bias` for requests that are not drafted for. vLLM refuses them wherever the
  engine speculates at all.
- Temperatures above 2, which vLLM computes well but does not let in.
- Speculation's counts after every step instead of at a request's end, so that they are there when
  a stop string ends it (with `per_request_spec_decode_metrics`).
- On CPUs, sampling with drafts: vLLM's stand-in for a kernel writes temperature, top-k and top-p
  of drafted positions into a copy (vLLM issue 55005), so they were whatever the memory held. In a
  step without drafts it takes the largest top-k of none, with which vLLM's core ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from tandem.vllm.seams import Seam, troubles

logger = logging.getLogger(__name__)

LIMIT = "num_draft_tokens"
HIGHEST_VLLM_TEMPERATURE = 2.0
_REQUEST = Seam("vllm.v1.request", "Request", ("request_id", "prompt_token_ids", "sampling_params"))
_VALIDATE = Seam(
    "vllm.sampling_params", "SamplingParams._validate_spec_decode", ("self", "speculative_config")
)
_VERIFY = Seam("vllm.sampling_params", "SamplingParams._verify_args", ("self",))
_BUILD_PROCESSORS = Seam(
    "vllm.v1.worker.gpu_model_runner",
    "build_logitsprocs",
    ("vllm_config", "device", "is_pin_memory", "is_pooling_model", "custom_logitsprocs"),
)
_PROCESSORS = Seam("vllm.v1.sample.logits_processor", "LogitsProcessors", ("logitsprocs",))
_UPDATE = Seam(
    "vllm.v1.core.sched.scheduler",
    "Scheduler.update_from_output",
    ("self", "scheduler_output", "model_runner_output"),
)
_EXPAND = Seam(
    "vllm.v1.sample.rejection_sampler",
    "expand_batch_to_tokens",
    ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
)
_CONSTRAIN = Seam(
    "vllm.v1.sample.rejection_sampler",
    "apply_sampling_constraints",
    ("logits", "cu_num_draft_tokens", "sampling_metadata"),
)
_FITS = Seam(
    "vllm.v1.worker.gpu_model_runner",
    "GPUModelRunner._input_fits_in_drafter",
    ("self", "common_attn_metadata"),
)
SEAMS = (
    *(_FITS, _REQUEST, _VALIDATE, _VERIFY, _BUILD_PROCESSORS, _PROCESSORS, _UPDATE, _EXPAND),
    _CONSTRAIN,
)


def register() -> None:
    """The entry point. A rank that is forked has what was done in the core."""
    wrong = troubles(SEAMS)
    if wrong:
        logger.error("vLLM's requests stay as vLLM has them: %s.", "; ".join(wrong))
        return
    _REQUEST.find().spec_token_ids = _LimitedDraft()
    _FITS.replace(_only_where_wanted)
    _VALIDATE.replace(_refuse_only_with_drafts)
    _VERIFY.replace(_with_any_temperature)
    _BUILD_PROCESSORS.replace(_with_all_processors)
    _UPDATE.replace(_with_counts)
    _EXPAND.replace(_expanding_in_place)
    _CONSTRAIN.replace(_where_there_are_drafts)


def draft_limit(sampling_params: Any) -> int | None:
    """Most drafted tokens a step of a request; None: the engine's."""
    extra = getattr(sampling_params, "extra_args", None) or {}
    return extra.get(LIMIT)


class _LimitedDraft:
    """The attribute through which every scheduler of vLLM gives a request its draft."""

    def __get__(self, request: Any, owner: type) -> Any:
        return self if request is None else request.__dict__["spec_token_ids"]

    def __set__(self, request: Any, tokens: list[int]) -> None:
        limit = draft_limit(getattr(request, "sampling_params", None))
        request.__dict__["spec_token_ids"] = tokens if limit is None else tokens[:limit]


def _only_where_wanted(original: Callable[..., bool]) -> Callable[..., bool]:
    """Prompts are fed to the draft all the same: others may share their KV."""

    @wraps(original)
    def fits(runner: Any, common_attn_metadata: Any) -> bool:
        if common_attn_metadata is not None and common_attn_metadata.max_query_len == 1:
            running = (runner.requests[name] for name in runner.input_batch.req_ids)
            if all(draft_limit(request.sampling_params) == 0 for request in running):
                return False
        return original(runner, common_attn_metadata)

    return fits


def _refuse_only_with_drafts(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def validate(params: Any, speculative_config: Any) -> None:
        if draft_limit(params) != 0:
            original(params, speculative_config)

    return validate


def _with_any_temperature(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def verify(params: Any) -> None:
        given = params.temperature
        params.temperature = min(given, HIGHEST_VLLM_TEMPERATURE)
        try:
            original(params)
        finally:
            params.temperature = given

    return verify


def _with_all_processors(original: Callable[..., Any]) -> Callable[..., Any]:
    """Positions behind a draft get none but min_tokens still; those without a draft get all."""

    @wraps(original)
    def build(
        vllm_config: Any, device: Any, is_pin_memory: bool, is_pooling_model: bool, custom: Any = ()
    ) -> Any:
        if vllm_config.speculative_config is None or is_pooling_model or custom:
            return original(vllm_config, device, is_pin_memory, is_pooling_model, custom)
        from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS

        made = [make(vllm_config, device, is_pin_memory) for make in BUILTIN_LOGITS_PROCESSORS]
        return _PROCESSORS.find()(made)

    return build


def _with_counts(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def update(scheduler: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        answer = original(scheduler, scheduler_output, model_runner_output)
        for outputs in answer.values():
            for output in outputs.outputs:
                request = scheduler.requests.get(output.request_id)
                if request is not None:  # a finished one has its counts already
                    output.spec_decode_metrics = request.spec_decode_metrics
        return answer

    return update


def _expanding_in_place(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(original)
    def expand(
        x: torch.Tensor,
        cu_num_tokens: torch.Tensor,
        num_tokens: int,
        replace_from: float = 0,
        replace_to: float = 0,
    ) -> torch.Tensor:
        """x [B] and cumulative counts [B] to [num_tokens]."""
        if x.device.type != "cpu":
            return original(x, cu_num_tokens, num_tokens, replace_from, replace_to)
        counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
        values = x.masked_fill(x == replace_from, replace_to)
        return values.repeat_interleave(counts, output_size=num_tokens)

    return expand


def _where_there_are_drafts(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(original)
    def constrain(
        logits: torch.Tensor, cu_num_draft_tokens: torch.Tensor, sampling_metadata: Any
    ) -> torch.Tensor:
        """logits [drafted positions, V]"""
        return (
            original(logits, cu_num_draft_tokens, sampling_metadata) if logits.numel() else logits
        )

    return constrain
