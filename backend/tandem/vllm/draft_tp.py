"""A draft tensor-parallel size of its own for vLLM: a plug-in that loads in every worker.

vLLM accepts 1 or the target's size t and then runs only t. Here the t ranks are cut into t / d
consecutive groups of d. Every group holds a whole draft model and drafts for itself, so that a
draft step's collective calls span d ranks; the first rank's tokens are broadcast, so that no two
ranks ever verify different drafts.

It works by replacing functions at the seams below. Where a vLLM has moved one, nothing is replaced
and the seam is named: vLLM is then as it was.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from tandem.vllm.seams import Seam, troubles

logger = logging.getLogger(__name__)

_PROPOSER = "vllm.v1.spec_decode.draft_model"
_STATE = "vllm.distributed.parallel_state"
CHECK_SIZE = Seam(
    "vllm.config.speculative",
    "SpeculativeConfig._verify_and_get_draft_tp",
    ("target_parallel_config", "speculative_draft_tensor_parallel_size"),
)
MAKE_GROUPS, MAKE_GROUPS_ON_CPUS = (
    Seam(f"vllm.v1.worker.{worker}", "init_worker_distributed_environment", ("vllm_config",))
    for worker in ("gpu_worker", "cpu_worker")
)
REFUSE_SIZE = Seam(_PROPOSER, "DraftModelProposer._raise_if_draft_tp_mismatch", ("self",))
LOAD = Seam(_PROPOSER, "DraftModelProposer.load_model", ("self", "target_model"))
PROPOSE = Seam(_PROPOSER, "DraftModelProposer.propose", ("self",))
DUMMY_RUN = Seam(_PROPOSER, "DraftModelProposer.dummy_run", ("self",))
NEW_GROUP = Seam(_STATE, "init_model_parallel_group", ("group_ranks", "local_rank", "backend"))
TP_GROUP = Seam(_STATE, "get_tp_group", ())
WORLD_GROUP = Seam(_STATE, "get_world_group", ())
SEAMS = (
    CHECK_SIZE,
    MAKE_GROUPS,
    REFUSE_SIZE,
    LOAD,
    PROPOSE,
    DUMMY_RUN,
    NEW_GROUP,
    TP_GROUP,
    WORLD_GROUP,
)


def seams() -> tuple[Seam, ...]:
    """Of the processor that this vLLM is for: whoever imports its worker for CPUs has no events and
    streams of GPUs any more."""
    platform = importlib.import_module("vllm.platforms").current_platform
    return (*SEAMS, MAKE_GROUPS_ON_CPUS) if platform.is_cpu() else SEAMS


def register() -> None:
    """The entry point. A rank that is forked has what was done in the core."""
    all_of_them = seams()
    wrong = troubles(all_of_them)
    if wrong:
        logger.error("draft_tensor_parallel_size stays as vLLM has it: %s.", "; ".join(wrong))
        return
    groups = _DraftGroups()
    CHECK_SIZE.replace(_any_divisor)
    REFUSE_SIZE.replace(lambda original: lambda self: None)
    for seam in {MAKE_GROUPS, MAKE_GROUPS_ON_CPUS} & set(all_of_them):
        seam.replace(groups.made_after)
    for seam in (LOAD, DUMMY_RUN):
        seam.replace(groups.inside)
    PROPOSE.replace(lambda original: groups.agreed(groups.inside(original)))


def _any_divisor(original: Callable[..., int]) -> Callable[..., int]:
    """Accepts every divisor of the target's size."""

    @wraps(original)
    def verify(target_parallel_config: Any, size: int | None, *rest: Any) -> int:
        if size is None:
            return original(target_parallel_config, size, *rest)
        t = target_parallel_config.tensor_parallel_size
        if t % size:
            raise ValueError(
                f"draft_tensor_parallel_size is {size} but tensor_parallel_size is {t}: choose a "
                f"divisor of {t}."
            )
        return size

    return verify


class _DraftGroups:
    """The draft's process group of this worker, once it exists."""

    def __init__(self) -> None:
        self.group: Any = None

    def made_after(self, original: Callable[..., None]) -> Callable[..., None]:
        """Makes the groups when those of the target are made: all workers take part."""

        @wraps(original)
        def start(vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            original(vllm_config, *args, **kwargs)
            size = _own_size(vllm_config)
            if size is not None and self.group is None:
                self.group = _cut(size)

        return start

    def inside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Runs with the draft's group in the place of the target's."""

        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _as_tp_group(self.group):
                return original(*args, **kwargs)

        return run

    def agreed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Gives every rank the first one's tokens, and what they were drawn from."""

        @wraps(original)
        def propose(proposer: Any, *args: Any, **kwargs: Any) -> Any:
            tokens = original(proposer, *args, **kwargs)
            if self.group is not None:
                target = TP_GROUP.find()()
                tokens = target.broadcast(tokens.contiguous(), src=0)
                if proposer._last_draft_probs is not None:
                    probs = proposer._last_draft_probs.contiguous()
                    proposer._last_draft_probs = target.broadcast(probs, src=0)
            return tokens

        return propose


def _own_size(vllm_config: Any) -> int | None:
    """The draft's size where it is another than the target's. Raises ValueError where only the
    first model runner is known to work."""
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "draft_model":
        return None
    size: int = speculative.draft_parallel_config.tensor_parallel_size
    if size == vllm_config.parallel_config.tensor_parallel_size:
        return None
    if vllm_config.use_v2_model_runner:
        raise ValueError(
            "draft_tensor_parallel_size does not work with vLLM's second model runner: set "
            "VLLM_USE_V2_MODEL_RUNNER=0."
        )
    return size


def _cut(size: int) -> Any:
    """Cuts the world into groups of `size` consecutive ranks; this worker's."""
    world = WORLD_GROUP.find()()
    ranks = list(range(world.world_size))
    backend = importlib.import_module("torch.distributed").get_backend(world.device_group)
    # The name must begin with tp: vLLM's shared-memory communicator on CPUs looks for it.
    return NEW_GROUP.find()(
        [ranks[start : start + size] for start in range(0, len(ranks), size)],
        world.local_rank,
        backend,
        group_name="tp_draft",
    )


@contextmanager
def _as_tp_group(group: Any) -> Iterator[None]:
    """vLLM's layers ask for the tensor-parallel group by a module variable."""
    if group is None:
        yield
        return
    state: Any = importlib.import_module(_STATE)
    kept, state._TP = state._TP, group
    try:
        yield
    finally:
        state._TP = kept
