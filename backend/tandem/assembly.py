"""Builds an engine's parts from its configuration, checking that they fit each other."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from tandem.config import EngineConfig
from tandem.cpu.library import has_kernels
from tandem.drafting import Proposer
from tandem.drafting.build import choose_proposer, choose_translation, load_guesser
from tandem.drafting.draft_model import DraftModel
from tandem.drafting.heads.features import FeatureGuesser
from tandem.drafting.steps import Guesser
from tandem.drafting.vocabulary import Translation
from tandem.errors import CheckpointError, ConfigError
from tandem.first_passes import FirstPasses
from tandem.kv_cache import BlockManager, cpu_kv_memory
from tandem.limits import Limits
from tandem.metrics import Meters
from tandem.models.config import ModelConfig, read_model_config
from tandem.models.layers import computes_in
from tandem.models.shard import check_shards
from tandem.runners.commands import Role
from tandem.runners.model_runner import ModelRunner
from tandem.runners.parallel_runner import ParallelRunner, Runner
from tandem.runners.placement import Placement, place
from tandem.runners.rank import room_of
from tandem.runners.world import World
from tandem.scheduler import Scheduler
from tandem.tokenizer import Tokenizer
from tandem.verification.sampler import Sampler

logger = logging.getLogger("tandem")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Cache(Protocol):
    """What has KV in every block."""

    def block_bytes(self, block_size: int) -> int: ...

    def allocate(self, num_blocks: int, block_size: int) -> None: ...


class Parts(NamedTuple):
    """Everything an engine is made of."""

    limits: Limits
    tokenizer: Tokenizer
    world: World | None
    """The other ranks; None: there are none."""
    target: Runner
    blocks: BlockManager
    scheduler: Scheduler
    meters: Meters
    proposer: Proposer
    sampler: Sampler


class Chosen(NamedTuple):
    """What is settled before anything is loaded."""

    model: ModelConfig
    draft: ModelConfig | None
    max_model_len: int
    tokenizer: Tokenizer
    translation: Translation | None
    """Between the tokens of target and draft, where they differ."""
    placement: Placement
    dtype: torch.dtype
    """Of weights and KV."""


class Loaded(NamedTuple):
    """Models, with KV for so many blocks."""

    target: Runner
    guesser: Guesser | None
    num_blocks: int


def build(config: EngineConfig) -> Parts:
    """Loads the models, sizes the KV pool, wires the rest. Raises `ConfigError` and
    `CheckpointError`."""
    chosen = choose(config)
    world = enter(config, chosen.placement)
    try:
        return wire(config, chosen, world, load(config, chosen, world))
    except BaseException:
        if world is not None:
            world.close()
        raise


def choose(config: EngineConfig) -> Chosen:
    """Reads what the checkpoints say of themselves, and checks that all of it goes together."""
    model = read_model_config(config.model)
    max_model_len = choose_max_model_len(config, model)
    draft = read_draft_config(config) if config.method == "draft_model" else None
    tokenizer = Tokenizer(config.model)
    translation = choose_translation(config, model, draft, tokenizer)
    check_ranks(config, model, draft)
    placement = place(config)
    dtype = choose_dtype(config, model, placement)
    return Chosen(model, draft, max_model_len, tokenizer, translation, placement, dtype)


def load(config: EngineConfig, chosen: Chosen, world: World | None) -> Loaded:
    """Loads the models; what memory they leave becomes KV blocks."""
    model, placement, dtype = chosen.model, chosen.placement, chosen.dtype
    runners = load_models(config, chosen, world)
    head_dtype = torch.float32 if by_kernels(model, placement, dtype) else dtype
    guesser = load_guesser(config, model, runners, head_dtype, dtype, chosen.translation)
    caches: list[tuple[Sequence[int], Cache]] = [(placement.target, runners[0])]
    caches += [(placement.draft, draft) for draft in runners[1:]]
    if isinstance(guesser, FeatureGuesser):
        caches.append(((0,), guesser))
    num_blocks = size_pool(config, chosen, bytes_a_block(caches, config.block_size), world)
    for _, cache in caches:
        cache.allocate(num_blocks, config.block_size)
    return Loaded(runners[0], guesser, num_blocks)


def wire(config: EngineConfig, chosen: Chosen, world: World | None, loaded: Loaded) -> Parts:
    """What is around the models."""
    target, guesser, num_blocks = loaded
    reads_ahead = isinstance(guesser, FeatureGuesser)
    blocks = BlockManager(num_blocks, config.block_size, config.enable_prefix_caching, reads_ahead)
    sampler = Sampler(config.seed, chosen.placement.devices[0])
    meters = Meters()
    model, max_model_len = chosen.model, chosen.max_model_len
    on_gpu = chosen.placement.devices[0].type == "cuda"
    taps = None if guesser is None else guesser.taps
    draft = guesser.runner if isinstance(guesser, DraftModel) else None
    first_passes = FirstPasses(config, target, taps, num_blocks, max_model_len, on_gpu, draft)
    if on_gpu:
        first_passes.warm_up()
    return Parts(
        limits=Limits(model.vocab_size, model.eos_ids, max_model_len, config.methods),
        tokenizer=chosen.tokenizer,
        world=world,
        target=target,
        blocks=blocks,
        scheduler=Scheduler(config, blocks, meters, draft_reach(config, chosen)),
        meters=meters,
        proposer=choose_proposer(config, target, guesser, sampler, first_passes.times),
        sampler=sampler,
    )


def check_ranks(config: EngineConfig, model: ModelConfig, draft: ModelConfig | None) -> None:
    """Raises `ConfigError` where a model cannot be divided as asked."""
    t, d = config.tensor_parallel_size, config.draft_tensor_parallel_size
    check_shards(f"the target {config.model}", model, t, "tensor_parallel_size")
    if draft is not None:
        name = f"the draft {config.draft_model}"
        check_shards(name, draft, d, "draft_tensor_parallel_size")


def enter(config: EngineConfig, placement: Placement) -> World | None:
    """Starts the other ranks, if there are any."""
    if placement.world_size > 1:
        return World(placement)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    elif placement.quota is not None:
        torch.set_num_threads(min(placement.quota, torch.get_num_threads()))
    return None


def load_models(config: EngineConfig, chosen: Chosen, world: World | None) -> list[Runner]:
    """The target's runner and, with a draft model, the draft's."""
    wanted: list[tuple[Role, Path, ModelConfig]] = [("target", config.model, chosen.model)]
    if chosen.draft is not None and config.draft_model is not None:
        wanted.append(("draft", config.draft_model, chosen.draft))
    dtype = chosen.dtype
    if world is None:
        device = chosen.placement.devices[0]
        small = "draft" if config.draft_weight_bits == 8 else None
        return [
            ModelRunner(folder, shape, dtype, device, eights=role == small)
            for role, folder, shape in wanted
        ]
    return [ParallelRunner(world, role, folder, shape, dtype) for role, folder, shape in wanted]


def choose_dtype(config: EngineConfig, model: ModelConfig, placement: Placement) -> torch.dtype:
    """The number format of weights and KV. The kernels compute in float32 whatever they read."""
    name = model.dtype if config.dtype == "auto" else config.dtype
    if name not in DTYPES:
        raise CheckpointError(
            f"{config.model} is stored as {name}, which the native engine does not run: set dtype "
            f"to one of {', '.join(DTYPES)}."
        )
    dtype = DTYPES[name]
    on_cpu = placement.devices[0].type == "cpu"
    if config.dtype == "auto" and on_cpu and not computes_in(name):
        return dtype if by_kernels(model, placement, dtype) else torch.float32
    return dtype


def by_kernels(model: ModelConfig, placement: Placement, dtype: torch.dtype) -> bool:
    """Whether whole passes are computed by the kernels: not where ranks share them."""
    alone = placement.world_size == 1
    return alone and has_kernels(placement.devices[0], dtype, model.head_dim)


def choose_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """Most tokens of a request. Raises `ConfigError` if the model cannot reach that far."""
    limit = model.max_position
    if model.sliding_window is not None and (config.max_model_len or limit) > model.sliding_window:
        raise ConfigError(
            f"{config.model} attends through a sliding window of {model.sliding_window} tokens, "
            f"which the native engine does not do: set max_model_len to at most "
            f"{model.sliding_window}, up to which the window changes nothing."
        )
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ConfigError(
            f"max_model_len is {config.max_model_len} but {config.model} was made for {limit} "
            f"positions: set it to at most {limit}."
        )
    return config.max_model_len or limit


def read_draft_config(config: EngineConfig) -> ModelConfig:
    """The draft's shape. Raises `CheckpointError` where the native engine does not run it."""
    assert config.draft_model is not None
    return read_model_config(config.draft_model)


def draft_reach(config: EngineConfig, chosen: Chosen) -> int:
    """Tokens of a request beyond which nothing is drafted."""
    reach = config.draft_max_model_len or chosen.max_model_len
    if chosen.draft is None or chosen.draft.max_position >= min(reach, chosen.max_model_len):
        return reach
    logger.warning(
        "The draft %s was made for %d positions: longer texts go on without drafts.",
        config.draft_model,
        chosen.draft.max_position,
    )
    return chosen.draft.max_position


def size_pool(
    config: EngineConfig, chosen: Chosen, block_bytes: Mapping[int, int], world: World | None
) -> int:
    """Number of KV blocks: as many as fit the rank that has least room for them. block_bytes: of
    each rank. Raises `ConfigError` if not even one longest request fits."""
    max_model_len, named = chosen.max_model_len, config.kv_cache_memory
    free = {} if named else free_memory(config, chosen.placement, world)
    memory = {rank: int(named or free[rank]) for rank in block_bytes}
    fullest = min(block_bytes, key=lambda rank: memory[rank] // block_bytes[rank])
    num_blocks = memory[fullest] // block_bytes[fullest]
    needed = -(-max_model_len // config.block_size)
    if num_blocks < needed:
        given = f"kv_cache_memory of {memory[fullest]} bytes"
        left = (
            f"The memory that is left for the KV cache ({memory[fullest]} bytes; another model, or "
            "an earlier load of this one, may hold the rest: then set its kv_cache_memory)"
        )
        raise ConfigError(
            f"{given if named else left} holds {num_blocks} blocks, but one request of "
            f"{max_model_len} tokens takes {needed}: set kv_cache_memory to "
            f"{needed * max(block_bytes.values())} or more where there is room, or lower "
            "max_model_len."
        )
    return num_blocks


def bytes_a_block(caches: Sequence[tuple[Sequence[int], Cache]], block_size: int) -> Counter[int]:
    """KV bytes of a block on each rank, of all models that it has a part in. caches: with the
    ranks that have them."""
    held = Counter[int]()
    for ranks, cache in caches:
        held.update(dict.fromkeys(ranks, cache.block_bytes(block_size)))
    return held


def free_memory(
    config: EngineConfig, placement: Placement, world: World | None
) -> Mapping[int, int]:
    """Bytes that may become KV cache on each rank, where the configuration names no number."""
    rooms = {0: room_of(placement.devices[0]), **(world.rooms if world else {})}
    kept, on_cpus = 1 - config.gpu_memory_utilization, cpu_kv_memory(placement.world_size)
    return {
        rank: on_cpus if room is None else max(0, int(room.free - room.total * kept))
        for rank, room in rooms.items()
    }
