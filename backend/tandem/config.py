"""EngineConfig: every knob of the engine, typed, validated once.

The names are those of `config.pbtxt`'s parameters; vLLM's where it has one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, ValidationError

from tandem.errors import ConfigError
from tandem.validation import no_bool, sentences, short

Count = Annotated[int, BeforeValidator(no_bool)]
PATH_KEYS = ("model", "draft_model", "vllm_python")
HEADS = ("medusa", "eagle", "eagle3", "mtp", "mlp_speculator")  # they read hidden states
LOOKUPS = ("ngram", "suffix")  # they read the text alone
WITH_KV = ("draft_model", "eagle", "eagle3", "mtp")  # the draft has a KV cache of its own
LONGEST_DRAFT = 64  # tokens
METHODS = ("draft_model", *HEADS, *LOOKUPS, "none")
OTHER_NAMES = {
    "target_model": "model",
    "speculative_model": "draft_model",
    "method": "speculative_method",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "draft_max_model_len",
    "disable_by_batch_size": "speculative_disable_by_batch_size",
    "rejection_sample_method": "acceptance_method",
    "speculative_config": "the keys that README.md lists",
}
"""What vLLM and its earlier versions call them."""
_LOOKUP_AS_MODEL = "[ngram]"
"""What earlier versions of vLLM took for the name of a model."""


def _absolute(key: str, base_dir: Path, path: str) -> Path:
    try:
        return (base_dir / path).resolve()
    except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise ConfigError(
            f"The parameter {key!r} is {short(path)}, but that is no path ({error}): name another."
        ) from None


def _as_object(value: Any) -> Any:
    """config.pbtxt holds strings: an object is written as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError('Input should be a JSON object such as {"max_num_seqs": 8}') from None


def _as_number(value: Any) -> Any:
    """Digits as the number that they stand for."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


def _as_methods(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    names = [name.strip() for name in value.split(",")]
    if not set(names) <= set(METHODS):
        raise ValueError(f"Input should be one of {', '.join(METHODS)}, or several by commas")
    models = [name for name in names if name not in LOOKUPS]
    if len(set(names)) < len(names) or len(models) > 1 or (models == ["none"] and len(names) > 1):
        raise ValueError("Input should name each lookup once and at most one other method")
    return ",".join(names)


def _as_tree(value: Any) -> Any:
    """A number, or JSON for a list of paths; every path's beginning must be listed too."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(
                "Input should be a number or JSON such as [[0], [1], [0, 0]]"
            ) from None
    if isinstance(value, bool) or (isinstance(value, int) and not 1 <= value <= 32):
        raise ValueError("Input should be a number from 1 to 32")
    if isinstance(value, list):
        _check_paths(value)
    return value


def _check_paths(paths: list[Any]) -> None:
    if len(paths) > LONGEST_DRAFT:
        raise ValueError(f"Input should be of {LONGEST_DRAFT} paths at most")
    lists = [path for path in paths if isinstance(path, list) and path]
    if len(lists) < len(paths) or not lists:
        raise ValueError("Input should be a list of lists of ranks")
    if not all(type(rank) is int and 0 <= rank < 32 for path in lists for rank in path):
        raise ValueError("Input should be made of ranks from 0 to 31")
    known = {tuple(path) for path in lists}
    for path in lists:
        if len(path) > 1 and tuple(path[:-1]) not in known:
            raise ValueError(f"Input should list {path[:-1]} too, which {path} follows")


class EngineConfig(BaseModel):
    """Parameters of one engine. Raises `ConfigError` on the first look at a bad value."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    engine: Literal["native", "vllm"] = "native"
    """`native`: ours. `vllm`: vLLM, in an environment of its own."""
    vllm_engine_args: Annotated[dict[str, Any], BeforeValidator(_as_object)] = {}
    """Further arguments of vLLM's engine, as JSON; for `engine` vllm alone."""
    vllm_python: Path | None = None
    """Interpreter that has vLLM; None: that of the folder `.venv-vllm` beside this environment."""
    model: Path
    """Folder of the target checkpoint in Hugging Face layout."""
    draft_model: Path | None = None
    """Folder of the draft's or the head's checkpoint, for methods that have one."""
    tensor_parallel_size: Annotated[Count, Field(ge=1)] = 1
    """Ranks of the target."""
    draft_tensor_parallel_size: Annotated[Count, Field(ge=1)] = 1
    """Ranks of the draft."""
    devices: str = "auto"
    """Of the target's ranks: `cpu`, `cuda`, `cuda:0,cuda:1`, or `auto`: GPUs where there are."""
    draft_devices: str | None = None
    """Devices of the draft's own ranks, as in `devices`; None: it shares the target's."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights and KV. `auto`: the target checkpoint's own; float32 where a CPU would compute in
    it by emulation, which the CPU kernels do not."""
    num_threads: Annotated[Count, Field(ge=1)] | None = None
    """CPU threads of the engine; None: all cores this process may use."""
    seed: Annotated[Count, Field(ge=0, lt=1 << 63)] | None = None
    """Seed of the draws for requests that bring none; None: from the system's entropy."""

    max_model_len: Annotated[Count, Field(ge=2)] | None = None
    """Most tokens of prompt and output together; None: the checkpoint's limit."""
    max_num_seqs: Annotated[Count, Field(ge=1)] = 64
    """Most requests in one step."""
    max_num_batched_tokens: Annotated[Count, Field(ge=16)] = 1024
    """Token budget of one step, prefill and decode together."""
    max_queue_size: Annotated[Count, Field(ge=1)] = 1024
    """Most requests waiting for a place; one more is refused."""
    queue_timeout: Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=1e6)] | None = None
    """Most seconds that a request waits before it is begun; None: as long as it takes."""
    max_prompt_bytes: Annotated[ByteSize, BeforeValidator(no_bool), Field(gt=0)] = ByteSize(1 << 20)
    """Most bytes of a prompt that is sent to Triton, and of the parameters beside it."""
    step_timeout: Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=1e6)] = 300.0
    """Seconds without an end of a step after which the engine counts as hung: it is ended and
    started again. Starting, with compilation and warm-up, is not a step."""
    start_timeout: Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=1e6)] = 1800.0
    """Seconds that starting the engine may take, compilation and warm-up included: a load fails
    after them, a start behind a crash is ended and tried again."""
    drain_timeout: Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=1e6)] = 30.0
    """Seconds that running requests have to end in once Triton unloads the model."""
    kv_cache_memory: Annotated[ByteSize, BeforeValidator(no_bool), Field(gt=0)] | None = None
    """Bytes for both KV caches, as in `512MiB`; None: sized from the device's free memory."""
    gpu_memory_utilization: Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=1)] = 0.9
    block_size: Annotated[Count, Field(ge=1, le=256)] = 16
    """Tokens a KV block holds."""
    enable_prefix_caching: bool = True

    speculative_method: Annotated[str | None, BeforeValidator(_as_methods)] = None
    """One method, or several by commas: lookups and at most one that guesses with a model. None:
    draft_model where a draft is given, else none."""
    num_speculative_tokens: Annotated[Count, Field(ge=1, le=LONGEST_DRAFT)] = 4
    """Most tokens drafted in a round; the nodes of a tree, all of its shape's if this is not set,
    else the likeliest."""
    draft_max_model_len: Annotated[Count, Field(ge=1)] | None = None
    """Tokens of a request beyond which nothing is drafted; None: as far as a draft model's
    positions reach."""
    draft_weight_bits: Annotated[Literal[8, 16], BeforeValidator(_as_number)] = 8
    """8: where the kernels of a CPU multiply bfloat16 (AVX512_BF16, no AMX), a draft model's and a
    head's own weights are rounded to 8 bits, which halves what is read of these. For `engine`
    native alone; where there are several ranks what drafts has 16."""
    speculative_tree: Annotated[int | list[list[int]] | None, BeforeValidator(_as_tree)] = None
    """A number: how many guesses are considered behind every likely one. A list of paths, as JSON:
    the tree's shape, as in Medusa's choices. None: a chain."""
    prompt_lookup_min: Annotated[Count, Field(ge=1)] = 2
    prompt_lookup_max: Annotated[Count, Field(ge=1, le=32)] = 5
    suffix_decoding_max_tree_depth: Annotated[Count, Field(ge=2, le=256)] = 24
    """Tokens of the match and of the guess behind it together."""
    suffix_decoding_max_cached_requests: Annotated[Count, Field(ge=0)] = 10_000
    """Past answers that are remembered; 0: none."""
    suffix_decoding_max_spec_factor: Annotated[
        float, BeforeValidator(no_bool), Field(gt=0, le=16)
    ] = 1.0
    """Tokens guessed for each token matched, at most."""
    suffix_decoding_min_token_prob: Annotated[
        float, BeforeValidator(no_bool), Field(ge=0, le=1)
    ] = 0.1
    """How often a token must have followed to be guessed."""
    adaptive_speculation: bool = True
    """Whether each step and request drafts no further than pays, or not at all, by what earlier
    drafts brought and earlier rounds took. False: as far as it may. For `engine` native alone."""
    speculative_disable_by_batch_size: Annotated[Count, Field(ge=1)] | None = None
    """No drafting in a step with at least this many running requests."""
    speculative_token_budget: Annotated[Count, Field(ge=1)] | None = None
    """Most tokens drafted in a step for all requests together, shared evenly. For `engine` native
    alone."""
    acceptance_method: Literal["rejection", "block", "coupled"] = "rejection"
    """`block`: chains are judged as a whole. `coupled`: keyed noise for requests without a seed,
    as those with one always have it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_prompts: bool = False
    """Write the beginning of each prompt to the log, at level `info`."""

    def __init__(self, /, **parameters: Any) -> None:
        try:
            super().__init__(**parameters)
        except ValidationError as error:
            known = type(self).model_fields
            raise ConfigError(sentences(error, "parameter", known, OTHER_NAMES)) from None
        self._check_together()

    def _check_together(self) -> None:
        if self.draft_model is not None and self.draft_model.name == _LOOKUP_AS_MODEL:
            raise ConfigError(
                f"draft_model is {_LOOKUP_AS_MODEL}: leave it empty, and set speculative_method to "
                "ngram."
            )
        if self.engine == "vllm":
            self._check_vllm()
        else:
            self._check_native()
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} but prompt_lookup_max is "
                f"{self.prompt_lookup_max}: make the minimum no larger than the maximum."
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs is {self.max_num_seqs} but max_num_batched_tokens is "
                f"{self.max_num_batched_tokens}: a step needs room for a token of every request."
            )
        if self.method not in ("mtp", "none", *LOOKUPS) and self.draft_model is None:
            raise ConfigError(
                f"speculative_method is {self.method} but draft_model is not set: "
                "name the folder of its checkpoint, or choose ngram, suffix or none."
            )

    def _check_native(self) -> None:
        for key in ("vllm_engine_args", "vllm_python"):
            if getattr(self, key):
                raise ConfigError(f"{key} is set but engine is native: leave it empty.")
        if self.method in HEADS and (self.draft_tensor_parallel_size > 1 or self.draft_devices):
            raise ConfigError(
                f"speculative_method is {self.method}, whose draft runs beside the target's first "
                "rank: set draft_tensor_parallel_size to 1 and leave draft_devices empty."
            )
        if len(self.methods) > 1 and not self.adaptive_speculation:
            raise ConfigError(
                f"speculative_method is {self.speculative_method} but adaptive_speculation, which "
                "chooses between methods, is false: set it to true or name one method."
            )
        if self.speculative_tree is not None and set(self.methods) <= {"ngram", "none"}:
            raise ConfigError(
                f"speculative_tree is set but speculative_method is {self.method}: leave it empty."
            )

    def _check_vllm(self) -> None:
        if len(self.methods) > 1:
            raise ConfigError(
                f"speculative_method is {self.speculative_method} but engine is vllm, which has "
                "one method at a time: choose one."
            )
        if self.method == "mlp_speculator":
            raise ConfigError(
                "speculative_method is mlp_speculator but engine is vllm, which no longer has it: "
                "choose another method, or engine native."
            )
        if self.speculative_tree is not None:
            raise ConfigError("speculative_tree is set but engine is vllm, which has chains alone.")
        if self.speculative_token_budget is not None:
            raise ConfigError(
                "speculative_token_budget is set but engine is vllm, which has no such limit: "
                "leave it empty, or set speculative_disable_by_batch_size."
            )
        if self.draft_max_model_len is not None and self.method in ("none", *LOOKUPS):
            raise ConfigError(
                f"draft_max_model_len is set but engine is vllm and speculative_method is "
                f"{self.method}, which has no draft's length: leave it empty."
            )
        if self.draft_devices is not None:
            raise ConfigError(
                "draft_devices is set but engine is vllm, whose draft runs on the target's "
                "devices: leave it empty."
            )
        if self.acceptance_method != "rejection":
            raise ConfigError(
                f"acceptance_method is {self.acceptance_method} but engine is vllm: set it to "
                "rejection."
            )
        t, d = self.tensor_parallel_size, self.draft_tensor_parallel_size
        if self.method != "draft_model" and d != t and self.draft_model is not None:
            raise ConfigError(
                f"draft_tensor_parallel_size is {d} but with engine vllm a draft of the method "
                f"{self.method} runs on all of the target's ranks: set it to {t}."
            )
        if t % d:
            raise ConfigError(
                f"draft_tensor_parallel_size is {d} but engine is vllm and tensor_parallel_size is "
                f"{t}: choose a divisor."
            )

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods of speculation in force."""
        if self.speculative_method is not None:
            return tuple(self.speculative_method.split(","))
        return ("none",) if self.draft_model is None else ("draft_model",)

    @property
    def method(self) -> str:
        """The method in force; of several the one that guesses with a model, if there is one."""
        return next((name for name in self.methods if name not in LOOKUPS), self.methods[0])

    @property
    def runners_with_kv(self) -> tuple[str, ...]:
        """Whose layers the KV cache holds."""
        return ("target", "draft") if self.method in WITH_KV else ("target",)

    @property
    def lookahead(self) -> int:
        """Most drafted tokens of a request in one step."""
        if isinstance(self.speculative_tree, list):
            nodes = len(self.speculative_tree)
            is_set = "num_speculative_tokens" in self.model_fields_set
            return min(nodes, self.num_speculative_tokens) if is_set else nodes
        return 0 if self.method == "none" else self.num_speculative_tokens

    @classmethod
    def from_triton_parameters(cls, parameters: dict[str, str], base_dir: Path) -> Self:
        """Reads `config.pbtxt` parameters. Empty values count as unset; relative folders
        start at `base_dir`, the model's version folder."""
        given: dict[str, Any] = {k: v.strip() for k, v in parameters.items() if v.strip()}
        for key in PATH_KEYS:
            if key in given:
                given[key] = _absolute(key, base_dir, given[key])
        return cls(**given)
