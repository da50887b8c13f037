"""Independent references: transformers for greedy text, plain enumeration for distributions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
import transformers

from tandem import RequestOutput, SamplingParams
from tandem.attention.plan import Query
from tandem.runners.parallel_runner import Runner


@cache
def hf_model(folder: Path) -> transformers.PreTrainedModel:
    """The checkpoint in transformers, fp32."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def hf_logits(folder: Path, tokens: Sequence[int]) -> torch.Tensor:
    """[T, V]"""
    return hf_model(folder)(torch.tensor([list(tokens)])).logits[0].float()


def logits_of(
    runner: Runner,
    tokens: Sequence[int],
    queries: Sequence[Query],
    rows: Sequence[int] | None = None,
) -> torch.Tensor:
    """[R, V] of a pass, which the next one leaves as they are."""
    return runner.forward(tokens, queries, rows).logits.clone()


def hf_greedy(folder: Path, prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """`transformers.generate`, prompts of equal length in one batch (so nothing is padded)."""
    found: dict[int, list[int]] = {}
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for _, group in itertools.groupby(order, key=lambda index: len(prompts[index])):
        indices = list(group)
        batch = torch.tensor([list(prompts[index]) for index in indices])
        text = hf_model(folder).generate(
            batch, attention_mask=torch.ones_like(batch), max_new_tokens=length, do_sample=False
        )
        found |= dict(zip(indices, text[:, batch.shape[1] :].tolist(), strict=True))
    return [found[index] for index in range(len(prompts))]


def plain_distribution(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], written: Sequence[int]
) -> list[float]:
    """One token's exact distribution, in plain Python, from the definition of each parameter."""
    line = [value + params.logit_bias.get(token, 0.0) for token, value in enumerate(logits)]
    for token in {*prompt, *written}:
        rate = params.repetition_penalty
        line[token] = line[token] / rate if line[token] > 0 else line[token] * rate
    for token in set(written):
        line[token] -= params.frequency_penalty * list(written).count(token)
        line[token] -= params.presence_penalty
    weights = [np.exp((value - max(line)) / params.temperature) for value in line]
    allowed = {t for t, w in enumerate(weights) if w >= params.min_p * max(weights)}
    best = sorted(allowed, key=lambda t: -weights[t])
    if params.top_k > 0:
        best = best[: params.top_k]
    total, kept = sum(weights[t] for t in best), []
    for token in best:
        if sum(weights[t] for t in kept) < params.top_p * total:
            kept.append(token)
    mass = sum(weights[t] for t in kept)
    return [weights[t] / mass if t in kept else 0.0 for t in range(len(weights))]


def enumerate_sequences(
    folder: Path, prompt: Sequence[int], params: SamplingParams, length: int
) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of `length` tokens behind the prompt."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for written, probability in found.items():
            logits = hf_logits(folder, [*prompt, *written])[-1].tolist()
            line = plain_distribution(logits, params, prompt, written)
            longer |= {(*written, t): probability * p for t, p in enumerate(line) if p > 0}
        found = longer
    return found


def chi_square_p(
    outputs: Sequence[RequestOutput], expected: dict[tuple[int, ...], float], length: int
) -> float:
    """p-value of the observed sequences; rare ones are pooled, impossible ones give 0."""
    from scipy.stats import chisquare

    counts = dict.fromkeys(expected, 0)
    for output in outputs:
        sequence = tuple(output.token_ids[:length])
        if sequence not in counts:
            return 0.0
        counts[sequence] += 1
    total = len(outputs)
    common = [s for s, p in expected.items() if p * total >= 8]
    observed = [counts[s] for s in common] + [total - sum(counts[s] for s in common)]
    wanted = [expected[s] * total for s in common]
    wanted.append(total - sum(wanted))
    if wanted[-1] < 8:  # too few to be a bin of its own: goes to the smallest common one
        smallest = int(np.argmin(wanted[:-1]))
        wanted[smallest] += wanted.pop()
        observed[smallest] += observed.pop()
    return float(chisquare(observed, wanted).pvalue)
