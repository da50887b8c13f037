"""Draft trees: verification, the tree mask, and compaction of what was accepted."""

import random

import pytest
import torch

from tandem import Engine, EngineConfig, SamplingParams
from tandem.attention.plan import Query, plan_groups, plan_rows
from tandem.drafting import Draft, Proposer
from tandem.drafting.chain import ChainProposer
from tandem.drafting.tree import TreeProposer
from tandem.models.config import read_model_config
from tandem.runners.model_runner import ModelRunner
from tandem.scheduler import Decode
from tests.engine.builders import make_request
from tests.engine.kernels import stored
from tests.engine.references import hf_greedy, hf_logits, logits_of

LENGTH = 48
NODES = 12


class RandomTrees(Proposer):
    """Grows a random tree; each node has a fair chance of a child with the right token."""

    def __init__(self, texts, seed=0):
        self.texts = texts
        self.rng = random.Random(seed)
        self.jumps = 0

    def propose(self, decodes, alone=False):
        trees = [self.grow(request, lookahead) for request, lookahead in decodes]
        return Draft([tokens for tokens, _ in trees], [parents for _, parents in trees])

    def grow(self, request, lookahead):
        text = self.texts[tuple(request.tokens[: request.num_prompt])]
        right = {0: len(request.tokens)}  # node -> where its continuation stands in the text
        tokens, parents = [], []
        for node in range(1, lookahead + 1):
            parent = self.rng.randrange(node)
            at = right.get(parent)
            used = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
            hit = at is not None and at < len(text) and text[at] not in used
            if hit and self.rng.random() < 0.5:
                token = text[at]
                right[node] = at + 1
            else:
                token = self.rng.choice([t for t in range(96) if t not in used])
            tokens.append(token)
            parents.append(parent)
        return tokens, parents

    def observe(self, decodes, draft, verdicts):
        for _, verdict in zip(decodes, verdicts, strict=False):
            self.jumps += verdict.path != list(range(1, len(verdict.path) + 1))


class Reading:
    """A guesser that still reads all texts."""

    taps, reads_all, max_depth, at_once = None, True, 9, None

    def ready(self, decodes):
        return []

    def begin(self, decodes):
        raise AssertionError("nobody is ready")


@pytest.mark.parametrize("tree", [False, True])
def test_whose_text_is_still_read_is_not_drafted_for(tree):
    made = TreeProposer(Reading(), None, 2, None) if tree else ChainProposer(Reading(), None, 96)
    draft = made.propose([Decode(make_request([1, 2, 3]), 4)] * 2)
    assert draft.tokens == [[], []]


@pytest.mark.parametrize("rounds", [None, lambda decodes: None])
def test_in_one_launch_all_drafts_take_as_many_rows(rounds):
    assert ChainProposer(Reading(), None, 96, rounds).pads == (rounds is not None)


@pytest.mark.parametrize("batch", [1, 7])
def test_greedy_text_and_kv_are_those_of_plain_decoding(batch, target):
    rng = random.Random(3)
    prompts = [rng.choices(range(96), k=rng.randrange(2, 40)) for _ in range(14)]
    expected = hf_greedy(target, prompts, LENGTH)
    config = EngineConfig(
        model=target,
        speculative_method="ngram",
        num_speculative_tokens=NODES,
        max_num_seqs=batch,
        kv_cache_memory="8MiB",
        block_size=4,
    )
    with Engine(config) as engine:
        texts = {tuple(p): [*p, *e] for p, e in zip(prompts, expected, strict=True)}
        engine.proposer = RandomTrees(texts)
        outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=LENGTH))
        assert [output.token_ids for output in outputs] == expected
        assert sum(output.stats.accepted for output in outputs) > 100
        assert engine.proposer.jumps > 20  # paths that had to be compacted


def test_sampled_text_does_not_depend_on_the_tree(target):
    prompts = [[5, 6, 7], [8, 9]]
    params = SamplingParams(seed=3, max_tokens=LENGTH)
    config = EngineConfig(
        model=target,
        speculative_method="ngram",
        num_speculative_tokens=NODES,
        kv_cache_memory="8MiB",
    )
    with Engine(config.model_copy(update={"speculative_method": "none"})) as engine:
        expected = [output.token_ids for output in engine.generate(prompts, params)]
    with Engine(config) as engine:
        texts = {tuple(p): [*p, *e] for p, e in zip(prompts, expected, strict=True)}
        engine.proposer = RandomTrees(texts)
        assert [output.token_ids for output in engine.generate(prompts, params)] == expected


def test_a_node_sees_its_ancestors_alone(target):
    """Each node's logits equal those of its own path, written out as a plain text."""
    prefix, nodes, parents = [1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15], [-1, 0, 0, 1, 2, 2]
    runner = ModelRunner(target, read_model_config(target), torch.float32, torch.device("cpu"))
    runner.allocate(num_blocks=4, block_size=4)
    logits_of(runner, prefix, [Query([2, 0, 1], 0, len(prefix))])
    logits = logits_of(runner, nodes, [Query([2, 0, 1], len(prefix), len(nodes), parents)])
    for node in range(len(nodes)):
        path, at = [], node
        while at >= 0:
            path.insert(0, nodes[at])
            at = parents[at]
        expected = hf_logits(target, [*prefix, *path])[-1]
        torch.testing.assert_close(logits[node], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("text", "nodes", "expanded"), [(200, 8, 1621), (600, 16, 9654), (4000, 64, 256_328)]
)
def test_the_prefix_is_read_once_for_all_nodes(text, nodes, expanded):
    """Batch expansion would read it once for every node; docs/methods.md has the figures."""
    parents = [-1, *(node // 2 for node in range(nodes - 1))]
    tree = Query(range(text), text, nodes, parents)
    cpu = torch.device("cpu")
    (group,) = plan_groups([tree], 16, 2, torch.float32, cpu)
    assert group.kv.stop - group.kv.start == text + nodes
    positions = plan_rows([tree], 16, cpu).positions
    assert sum(int(position) + 1 for position in positions) == expanded


@pytest.mark.usefixtures("exact")
def test_compacted_kv_is_that_of_a_fresh_pass_bit_for_bit(target):
    config = EngineConfig(
        model=target,
        speculative_method="ngram",
        num_speculative_tokens=NODES,
        kv_cache_memory="8MiB",
    )
    prompt = [7, 8, 9]
    text = [*prompt, *hf_greedy(target, [prompt], LENGTH)[0]]
    with Engine(config) as engine:
        proposer = engine.proposer = RandomTrees({tuple(prompt): text})
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=LENGTH))
        while proposer.jumps < 4:
            engine.step()
        (request,) = engine.scheduler.running
        computed = request.computed
        found = cached(engine.target, request.blocks, computed)
    scratch = ModelRunner(target, read_model_config(target), torch.float32, torch.device("cpu"))
    scratch.allocate(num_blocks=8, block_size=16)
    logits_of(scratch, text[:computed], [Query(range(8), 0, computed)])
    expected = cached(scratch, range(8), computed)
    assert torch.equal(found, expected)


def cached(runner, blocks, length):
    """[layers, length, width] of one request's KV."""
    slots = [block * 16 + offset for block in blocks for offset in range(16)][:length]
    return stored(runner)[:, slots].clone()
