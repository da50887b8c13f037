"""Builds what guesses: the model behind a method, and the proposer around it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

import torch

from tandem.config import HEADS, EngineConfig
from tandem.cpu.linear import use_kernels
from tandem.drafting import NoProposer, Proposer
from tandem.drafting.chain import ChainProposer, Rounds
from tandem.drafting.choosing import Method
from tandem.drafting.costs import RoundCosts
from tandem.drafting.draft_model import DraftModel
from tandem.drafting.heads.checkpoint import Head, read_head
from tandem.drafting.heads.eagle import Eagle
from tandem.drafting.heads.eagle3 import Eagle3
from tandem.drafting.heads.features import FeatureGuesser, ParallelGuesser
from tandem.drafting.heads.medusa import Medusa
from tandem.drafting.heads.mlp_speculator import MlpSpeculator
from tandem.drafting.heads.modules import ModulesGuesser
from tandem.drafting.heads.mtp import Mtp, count_modules
from tandem.drafting.heads.target import target_tables
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.ngram import NgramProposer
from tandem.drafting.steps import Guesser
from tandem.drafting.times import Profile
from tandem.drafting.tree import TreeProposer
from tandem.drafting.vocabulary import Translation, Vocabulary, translate
from tandem.errors import CheckpointError
from tandem.models.config import ModelConfig
from tandem.runners.model_runner import ModelRunner
from tandem.runners.parallel_runner import Runner
from tandem.tokenizer import Tokenizer
from tandem.verification.sampler import Sampler

logger = logging.getLogger("tandem")

AnyHead = Medusa | MlpSpeculator | Eagle | Eagle3 | Mtp
WRONG_KIND = (TypeError, ValueError, AttributeError, KeyError, ZeroDivisionError)


def choose_translation(
    config: EngineConfig, model: ModelConfig, draft: ModelConfig | None, tokenizer: Tokenizer
) -> Translation | None:
    """Between target and draft, where their tokens differ. Without a tokenizer of its own the draft
    has the target's."""
    if draft is None or config.draft_model is None:
        return None
    if (
        not (config.draft_model / "tokenizer.json").exists()
        and draft.vocab_size == model.vocab_size
    ):
        return None
    return translate(
        Vocabulary.of(f"the target {config.model}", tokenizer, model),
        Vocabulary.of(f"The draft {config.draft_model}", Tokenizer(config.draft_model), draft),
    )


def load_guesser(
    config: EngineConfig,
    model: ModelConfig,
    runners: Sequence[Runner],
    dtype: torch.dtype,
    stored: torch.dtype,
    translation: Translation | None,
) -> Guesser | None:
    """The model that guesses, where the method has one. A head computes in `dtype`; where the
    kernels multiply, its weights are kept as `stored`."""
    if config.method == "draft_model":
        runner = runners[-1]
        between = translation and translation.to(runner.device)
        return DraftModel(runner, config.max_num_batched_tokens, between)
    if config.method not in HEADS:
        return None
    device = runners[0].device
    made = _load_heads(config, model, runners[0], dtype)
    if device.type == "cpu":
        # of a target on several ranks a head has copies of what is the target's
        eights = config.draft_weight_bits == 8 and isinstance(runners[0], ModelRunner)
        for one in made:
            use_kernels(one, stored, eights)
    guesser = _guesser_of(made, dtype, device)
    wanted = config.num_speculative_tokens
    if config.speculative_tree is None and wanted > guesser.max_depth:
        told = "num_speculative_tokens is %d, but %s guesses at most %d tokens in a row."
        logger.warning(told, wanted, config.draft_model or config.model, guesser.max_depth)
    return guesser


def _load_heads(
    config: EngineConfig, model: ModelConfig, target: Runner, dtype: torch.dtype
) -> list[AnyHead]:
    head = read_head(config.draft_model or config.model)
    try:
        with torch.inference_mode():
            made = _make_heads(config, head, model, target, dtype)
            return [one.to(target.device) for one in made]
    except WRONG_KIND as error:
        raise CheckpointError(
            f"{head.folder}/config.json holds a value of the wrong kind ({error}): restore it."
        ) from None


def _guesser_of(made: list[AnyHead], dtype: torch.dtype, device: torch.device) -> Guesser:
    first, *more = made
    if isinstance(first, Medusa | MlpSpeculator):
        return first
    if more:
        return ModulesGuesser(cast("list[Mtp]", made), dtype, device)
    if isinstance(first, Eagle3) and first.mask is not None:
        return ParallelGuesser(first, first.mask, dtype, device)
    return FeatureGuesser(first, dtype, device)


def _make_heads(
    config: EngineConfig, head: Head, model: ModelConfig, target: Runner, dtype: torch.dtype
) -> Sequence[AnyHead]:
    """One, but for several modules of MTP."""
    if config.method == "medusa":
        return [Medusa(head, model, dtype)]
    if config.method == "mlp_speculator":
        return [MlpSpeculator(head, model, dtype)]
    tables = target_tables(config, model, target, dtype)
    if config.method == "mtp":
        count = count_modules(head)
        return [Mtp(head, model, tables, dtype, index) for index in range(count)]
    kind = Eagle if config.method == "eagle" else Eagle3
    return [kind(head, model, tables, dtype)]


def choose_proposer(
    config: EngineConfig,
    target: Runner,
    guesser: Guesser | None,
    sampler: Sampler,
    pass_times: Callable[[], Profile],
) -> Proposer:
    """The proposer of `speculative_method`. pass_times measures the target, where that is
    wanted."""
    rounds = choose_rounds(config, target, guesser, sampler)
    made = [
        _make_method(config, name, guesser, sampler, target.config.vocab_size, rounds)
        for name in config.methods
    ]
    if config.method == "none" or not config.adaptive_speculation:
        return made[0].proposer
    costs = RoundCosts(*pass_times())
    # on GPUs passes are graphs that were captured with what they keep, which costs next to nothing
    may_spare = target.device.type == "cpu"
    prefixes, requests = config.enable_prefix_caching, config.max_num_seqs
    return MixtureProposer(made, config.lookahead, costs, prefixes, requests, may_spare)


def choose_rounds(
    config: EngineConfig, target: Runner, guesser: Guesser | None, sampler: Sampler
) -> Rounds | None:
    """Rounds of one launch, where target and draft model run by graphs on one GPU, and nothing but
    the draft's chains is to be verified."""
    if not isinstance(guesser, DraftModel) or guesser.translation is not None:
        return None
    if config.speculative_tree is not None or len(config.methods) > 1:
        return None
    draft = guesser.runner
    if not isinstance(target, ModelRunner) or not isinstance(draft, ModelRunner):
        return None
    if target.by_graphs is None or draft.config.vocab_size != target.config.vocab_size:
        return None
    # Triton comes with GPUs alone
    from tandem.gpu.graphs import CudaGraphs
    from tandem.gpu.rounds import GraphedRounds

    rule = config.acceptance_method
    rounds = GraphedRounds(target, draft, sampler, CudaGraphs(target.device), rule == "block")
    with torch.inference_mode():  # as whatever else is captured
        rounds.prepare(config.max_num_seqs, config.lookahead, judged=rule == "rejection")
    return rounds


def _make_method(
    config: EngineConfig,
    name: str,
    guesser: Guesser | None,
    sampler: Sampler,
    vocab: int,
    rounds: Rounds | None,
) -> Method:
    if name == "ngram":
        lookup = NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)
        return Method(name, lookup, is_lookup=True)
    if name == "suffix":
        # whoever looks up no suffixes can do without the package that has their trees
        from tandem.drafting.suffix import SuffixProposer

        return Method(name, SuffixProposer(config), is_lookup=True)
    if guesser is None:
        return Method(name, NoProposer(), is_lookup=True)
    tree = config.speculative_tree
    if tree is None:
        return Method(name, ChainProposer(guesser, sampler, vocab, rounds), is_lookup=False)
    shape = tree if isinstance(tree, list) else None
    top_k = tree if isinstance(tree, int) else 1
    return Method(name, TreeProposer(guesser, sampler, top_k, shape), is_lookup=False)
