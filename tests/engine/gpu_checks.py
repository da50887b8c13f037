"""The checks of test_gpu_kernels.py, in Triton's interpreter where the environment chooses it.

Prints as JSON what failed, by check, of those named. bfloat16 is left out: the interpreter does not
compute in it.
"""

import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from scipy.stats import chisquare

from tandem import Engine, EngineConfig, RequestOutput, SamplingParams
from tandem.attention.paged import PagedKVCache
from tandem.attention.plan import Query, ancestors
from tandem.drafting import Draft
from tandem.drafting.chain import ChainProposer
from tandem.drafting.draft_model import DraftModel
from tandem.drafting.mixture import MixtureProposer
from tandem.gpu.verification import judge
from tandem.models.decoder import Passed
from tandem.scheduler import Decode
from tandem.verification.judging import Judged
from tandem.verification.sampler import Sampler
from tandem.verification.verify import verify
from tests.engine.builders import make_request
from tests.engine.checkpoints import make_checkpoint, perturb_checkpoint
from tests.engine.policy_world import always_pays
from tests.engine.references import chi_square_p, enumerate_sequences

TREE = [-1, 0, 0, 1, 1, 2]
RNG = random.Random(0)
SAMPLES = 300
DRAWN = 128
GREEDY: dict[str, object] = {"temperature": 0}
SEEDED: dict[str, object] = {"temperature": 0.9, "seed": 3}


def blocks(count: int) -> list[int]:
    """A block table, in no order."""
    return RNG.sample(range(1, 60), count)


CASES = {
    "decode": {"queries": [Query(blocks(3), 37, 1), Query(blocks(8), 100, 1)]},
    "chunks": {"queries": [Query(blocks(6), 20, 70), Query(blocks(2), 0, 5)]},
    "trees": {"queries": [Query(blocks(4), 40, 6, TREE), Query(blocks(4), 3, 6, TREE)]},
    "a tree's later level": {"queries": [Query(blocks(4), 30, 2, TREE, 4)]},
    "a chain's later tokens": {"queries": [Query(blocks(4), 30, 2, None, 3)]},
    "long texts": {"queries": [Query(blocks(50), 700, 3), Query(blocks(1), 2, 2)], "programs": 128},
    "odd sizes": {
        "queries": [Query(blocks(7), 30, 3), Query(blocks(8), 30, 6, TREE)],
        "heads": 6,
        "dim": 24,
        "block": 5,
    },
    "one KV head in half precision": {
        "queries": [Query(blocks(3), 30, 3), Query(blocks(4), 30, 6, TREE)],
        "heads": 8,
        "kv_heads": 1,
        "dtype": torch.float16,
    },
}


def attention(
    queries: list[Query],
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 32,
    block: int = 16,
    programs: int = 8,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> None:
    """Against `reference`, with NaN in every slot that no query has stored."""
    from tandem.gpu.tree_attention import attend, plan

    torch.manual_seed(1)
    cache = torch.full((60 * block, 2 * kv_heads * dim), float("nan"), dtype=dtype)
    for query in queries:
        slots = slots_of(query, block)
        cache[slots] = torch.randn(len(slots), cache.shape[1]).to(dtype)
    rows = torch.randn(sum(query.length for query in queries), heads, dim).to(dtype)
    batch = plan(queries, heads // kv_heads, programs, torch.device(device))
    found = attend(rows.to(device), cache.to(device), batch, block)
    torch.testing.assert_close(
        found.float().cpu(),
        reference(rows, cache, queries, block),
        atol={torch.float32: 1e-5, torch.float16: 2e-3}.get(dtype, 2e-2),
        rtol=0,
    )


def slots_of(query: Query, block: int) -> torch.Tensor:
    """Of all that is stored behind the pass."""
    places = range(query.end)
    return torch.tensor([query.blocks[at // block] * block + at % block for at in places])


def reference(
    rows: torch.Tensor, cache: torch.Tensor, queries: list[Query], block: int
) -> torch.Tensor:
    """Each row and head alone, over what it sees."""
    count, heads, dim = rows.shape
    out, first = torch.zeros(count, heads, dim), 0
    for query in queries:
        stored = cache[slots_of(query, block)].view(query.end, 2, -1, dim).float()
        shared = heads // stored.shape[2]
        for row in range(query.length):
            if query.parents is None:
                seen = list(range(query.start + query.stored + row + 1))
            else:
                above = ancestors(query.parents)[query.stored + row].nonzero()[0].tolist()
                seen = [*range(query.start), *(query.start + node for node in above)]
            for head in range(heads):
                keys, values = stored[seen, :, head // shared].unbind(1)
                scores = keys @ rows[first + row, head].float() / dim**0.5
                out[first + row, head] = scores.softmax(0) @ values
        first += query.length
    return out.view(count, -1)


def graphed(model: str, queries: list[Query], taps: list[int] | None) -> None:
    """A padded pass gives what the same pass gives unpadded, and stores nothing elsewhere."""
    from tandem.gpu.graphs import GraphedPasses

    config = EngineConfig(model=model, kv_cache_memory="4MiB", dtype="float32", devices="cpu")
    with Engine(config) as running, torch.inference_mode():
        runner = running.target
        runner.by_kernels, runner.cache.by_triton = None, True
        graphs = GraphedPasses(runner.cache, lambda run: run)
        tokens = [RNG.randrange(30) for _ in range(sum(query.length for query in queries))]
        found = []
        for by_graphs in (None, graphs):
            torch.manual_seed(2)
            runner.by_graphs = by_graphs
            runner.cache.data.copy_(torch.randn(runner.cache.data.shape))
            made = runner.forward(tokens, queries, None, taps)
            stored = runner.cache.data[:, : runner.cache.spare_slot].clone()
            found.append([made.logits, made.features, stored])
    for alone, padded in zip(*found, strict=True):
        torch.testing.assert_close(alone, padded, atol=1e-5, rtol=1e-5)


def too_many(model: str) -> None:
    """A pass over more rows than a graph takes goes the other way."""
    graphed(model, [Query(range(9), 0, 130), Query(range(9, 18), 0, 130)], None)


def engine(model: str, sampling: dict[str, object], **parameters: object) -> None:
    """Texts are the same as by torch's attention and sampling."""
    config = EngineConfig(
        model=model, kv_cache_memory="4MiB", dtype="float32", devices="cpu", **parameters
    )
    params = SamplingParams(max_tokens=6, ignore_eos=True, **sampling)
    prompts = [[5, 9, 5, 9, 5], list(range(3, 40))]
    texts = []
    for by_triton in (False, True):
        with Engine(config) as running:
            for runner in (running.target, getattr(running.proposer, "guesser", None)):
                runner = getattr(runner, "runner", runner)
                if runner is not None:
                    runner.by_kernels = runner.by_graphs = None
                    assert isinstance(runner.cache, PagedKVCache)
                    runner.cache.by_triton = by_triton
            running.sampler.kernel = judge if by_triton else None
            texts.append([output.token_ids for output in running.generate(prompts, params)])
    assert texts[0] == texts[1], texts


class HostClock:
    """Of a round, without a device."""

    def __init__(self) -> None:
        self.marks = [0.0] * 2

    def mark(self, place: int) -> None:
        self.marks[place] = time.perf_counter()

    def wait(self) -> float:
        return self.marks[1] - self.marks[0]


@contextmanager
def by_rounds(
    model: Path, draft: Path, fused: bool, **parameters: object
) -> Iterator[tuple[Engine, list[Draft]]]:
    """An engine on the GPU's kernels, and its rounds of one launch."""
    from tandem.gpu.round_layout import READ
    from tandem.gpu.rounds import GraphedRounds

    config = EngineConfig(
        model=model,
        draft_model=draft,
        kv_cache_memory="4MiB",
        dtype="float32",
        devices="cpu",
        **{"adaptive_speculation": False, **parameters},
    )
    found: list[Draft] = []
    with Engine(config) as running:
        proposer = running.proposer
        if isinstance(proposer, MixtureProposer):
            always_pays(running)
            assert proposer.model is not None
            proposer = proposer.model.proposer
        assert isinstance(proposer, ChainProposer)
        guesser = proposer.guesser
        assert isinstance(guesser, DraftModel)
        runners = running.target, guesser.runner
        for runner in runners:
            runner.by_kernels, runner.cache.by_triton = None, True
        running.sampler.kernel = judge
        rounds = GraphedRounds(*runners, running.sampler, lambda run: run, clock=HostClock)

        def noted(decodes: Sequence[Decode]) -> Draft | None:
            for request in [decode.request for decode in decodes if decode.lookahead]:
                if len(request.tokens) - request.draft_computed > READ:  # its prompt
                    guesser.begin([Decode(request, 1)])
                    request.draft_computed = len(request.tokens) - 1
            draft = rounds(decodes)
            if draft is not None:
                found.append(draft)
            return draft

        proposer.rounds = noted if fused else None
        yield running, found


def rounds(model: str, sampling: list[dict[str, object]], **parameters: object) -> None:
    """Rounds of one launch write what the same rounds write pass by pass."""
    with TemporaryDirectory() as folder:
        draft = perturb_checkpoint(Path(model), Path(folder, "draft"), noise=0.05)
        prompts = [[5, 9, 5, 9, 5], list(range(3, 40)), [7], [2, 2, 8, 1]][: len(sampling)]
        params = [SamplingParams(max_tokens=9, ignore_eos=True, **one) for one in sampling]
        texts, stats = [], []
        for fused in (False, True):
            with by_rounds(Path(model), draft, fused, **parameters) as (running, drafts):
                outputs = running.generate(prompts, params)
                texts.append([output.token_ids for output in outputs])
                stats.append([output.stats for output in outputs])
            assert bool(drafts) == fused
    assert texts[0] == texts[1], texts
    assert stats[0] == stats[1] or "adaptive_speculation" in parameters, stats
    kept = sum(one.accepted for one in stats[1])
    assert 0 < kept < sum(one.drafted for one in stats[1])


class Launch(NamedTuple):
    """Of the kernel that draws and judges."""

    scored: torch.Tensor
    q: torch.Tensor | None
    plans: torch.Tensor
    tokens: torch.Tensor


@contextmanager
def told() -> Iterator[list[Launch]]:
    """What rounds tell the kernel, and what it draws."""
    from tandem.gpu import round as one_round

    found: list[Launch] = []

    def noted(
        scored: torch.Tensor, q: torch.Tensor | None, plans: torch.Tensor, *more: torch.Tensor
    ) -> Judged:
        made = launch(scored, q, plans, *more)
        kept_q = None if q is None else q.clone()
        found.append(Launch(scored.clone(), kept_q, plans.clone(), made.tokens.clone()))
        return made

    launch, one_round.launch = one_round.launch, noted
    try:
        yield found
    finally:
        one_round.launch = launch


def judged_by_its_q(launches: list[Launch], place: int) -> int:
    """How many tokens this launch judges, each by what an earlier launch of the round drew it
    from."""
    _, q, plans, _ = launches[place]
    if q is None:
        return 0
    levels = (
        launches[place - 2 : place] if len(plans) == 3 * len(launches[place - 1].tokens) else []
    )
    levels = levels or launches[place - 1 : place]  # chains of two tokens, or of one
    nodes = plans.view(-1, len(levels) + 1, 3)
    judged = 0
    for request, row in enumerate(nodes.tolist()):
        for level, (_, token, q_row) in enumerate(row[:-1]):
            if q_row >= 0:
                assert token == levels[level].tokens[request]
                torch.testing.assert_close(q[q_row], levels[level].scored[request].softmax(-1))
                judged += 1
        assert row[-1][2] == -1
    return judged


def drawn_in_rounds() -> None:
    """Texts of rounds of one launch are distributed as the target says."""
    prompt, batch, smallest = [1, 2, 1], 16, {"num_hidden_layers": 1, "num_attention_heads": 1}
    shape = smallest | {"num_key_value_heads": 1, "hidden_size": 16, "vocab_size": 6}
    params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.9, top_k=5)
    outputs: list[RequestOutput] = []
    with TemporaryDirectory() as folder:
        model = make_checkpoint(Path(folder, "target"), seed=11, scale=4.0, **shape)
        draft = make_checkpoint(Path(folder, "draft"), seed=12, scale=4.0, **shape)
        sizes = {"max_num_seqs": batch, "num_speculative_tokens": 2}
        with by_rounds(model, draft, True, **sizes) as (running, drafts), told() as launches:
            for _ in range(DRAWN // batch):
                outputs += running.generate([prompt] * batch, params)
        expected = enumerate_sequences(model, prompt, params, 3)
    assert sum(len(tokens) for draft in drafts for tokens in draft.tokens) > DRAWN
    judged = [judged_by_its_q(launches, place) for place in range(len(launches))]
    assert sum(judged) > DRAWN
    assert chi_square_p(outputs, expected, 3) > 1e-3


def rejection(device: str = "cpu") -> None:
    """Kept drafts and their replacements are distributed as the target says, the next token too."""
    p = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    q = torch.tensor([0.1, 0.6, 0.1, 0.2], device=device)
    tokens = torch.multinomial(q.cpu(), SAMPLES, replacement=True)[:, None].tolist()
    requests = [make_request([0]) for _ in range(SAMPLES)]
    sampler = Sampler(1, torch.device(device))
    sampler.kernel = judge
    draft = Draft(tokens, q=q.expand(SAMPLES, 1, -1))
    logits = p.log().float().repeat(SAMPLES, 1).to(device)
    verdicts = verify(Passed(logits, None), requests, draft, sampler)
    first = [verdict.tokens[0] for verdict in verdicts]
    second = [verdict.tokens[1] for verdict in verdicts if verdict.path]
    for drawn, expected in ((first, p[0]), (second, p[1])):
        counts = torch.bincount(torch.tensor(drawn), minlength=4)
        assert chisquare(counts, len(drawn) * expected).pvalue > 1e-3, counts
    assert abs(len(second) / SAMPLES - 0.5) < 0.1  # sum of min(p, q)


def checks(model: str) -> dict[str, Callable[[], None]]:
    """model: folder of a tiny target."""
    draft = {"draft_model": Path(model), "adaptive_speculation": False}
    decodes = [Query(blocks(3), 37, 1), Query(blocks(2), 20, 1), Query(blocks(1), 0, 1)]
    drafts = [Query(blocks(4), 40, 6, TREE), Query(blocks(4), 30, 5)]
    drafts.append(Query(blocks(2), 9, 2, None, 3))
    return {name: partial(attention, **case) for name, case in CASES.items()} | {
        "a graph's decodes": partial(graphed, model, decodes, None),
        "a graph's drafts": partial(graphed, model, drafts, []),
        "a graph's taps": partial(graphed, model, drafts, [0, 1]),
        "more rows than a graph's": partial(too_many, model),
        "an engine's chains": partial(engine, model, GREEDY, **draft),
        "an engine's trees": partial(engine, model, GREEDY, **draft, speculative_tree=2),
        "an engine's seeds": partial(engine, model, SEEDED, **draft),
        "greedy rounds": partial(rounds, model, [GREEDY] * 2, num_speculative_tokens=2),
        "rounds of all kinds": partial(
            rounds,
            model,
            [GREEDY, SEEDED, SEEDED | {"top_k": 9, "top_p": 0.9}, GREEDY | {"num_draft_tokens": 0}],
        ),
        "rounds that adapt": partial(rounds, model, [GREEDY, SEEDED], adaptive_speculation=True),
        "random rounds": drawn_in_rounds,
        "rejection": rejection,
    }


def failures(model: str, names: Sequence[str]) -> dict[str, str]:
    """The tracebacks."""
    found, known = {}, checks(model)
    for name in names:
        try:
            known[name]()
        except Exception:
            found[name] = traceback.format_exc()
    return found


if __name__ == "__main__":
    print(json.dumps(failures(sys.argv[1], sys.argv[2:])))
