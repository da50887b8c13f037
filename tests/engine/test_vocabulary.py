"""A draft with another tokenizer proposes what both know, and nothing is lost by what it lacks."""

import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders
from tokenizers.models import BPE

from tandem import SamplingParams
from tandem.drafting.vocabulary import Vocabulary, translate
from tandem.errors import ConfigError
from tandem.tokenizer import Tokenizer
from tests.engine.checkpoints import cut_vocabulary, make_checkpoint, write_words
from tests.engine.references import hf_greedy

LENGTH = 40
RNG = random.Random(3)
PROMPTS = [RNG.choices(range(96), k=RNG.randrange(2, 40)) for _ in range(8)]
TREES = {"chain": {}, "tree": {"speculative_tree": 3}}


def renumbered(source, folder, order, words):
    """The checkpoint with its tokens in another order, and a tokenizer of these words."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][order].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    write_words(folder, words)
    return folder


@pytest.fixture(scope="module")
def permuted(target, tmp_path_factory):
    """The target itself, its ids shuffled."""
    order = random.Random(1).sample(range(96), 96)
    folder = tmp_path_factory.mktemp("vocabulary") / "permuted"
    return renumbered(target, folder, order, [f"t{i}" for i in order])


@pytest.fixture(scope="module")
def partial(target, tmp_path_factory):
    """The same, but a third of its words are its own."""
    order = random.Random(2).sample(range(96), 96)
    words = [f"t{token}" if token % 3 else f"own{token}" for token in order]
    return renumbered(target, tmp_path_factory.mktemp("vocabulary") / "partial", order, words)


@pytest.fixture(scope="module")
def fewer(target, tmp_path_factory):
    """The target without its last tokens."""
    return cut_vocabulary(target, tmp_path_factory.mktemp("vocabulary") / "fewer", 90)


@pytest.fixture(params=["permuted", "partial", "fewer"])
def draft(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("tree", TREES)
def test_greedy_text_is_the_targets_own(engine, target, draft, tree):
    one = engine(draft_model=draft, num_speculative_tokens=5, max_num_seqs=4, **TREES[tree])
    outputs = one.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=LENGTH))
    assert [o.token_ids for o in outputs] == hf_greedy(target, PROMPTS, LENGTH)
    assert sum(o.stats.accepted for o in outputs)


@pytest.mark.parametrize("tree", TREES)
def test_a_seed_decides_the_text(engine, draft, tree):
    params = [SamplingParams(seed=i, max_tokens=LENGTH, top_k=30) for i in range(len(PROMPTS))]
    plain = engine().generate(PROMPTS, params)
    outputs = engine(draft_model=draft, **TREES[tree]).generate(PROMPTS, params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]


def test_the_same_model_under_other_ids_is_always_right(engine, permuted):
    one = engine(draft_model=permuted)
    for params in (SamplingParams(temperature=0, max_tokens=LENGTH), SamplingParams(max_tokens=60)):
        for output in one.generate(PROMPTS, params):
            assert output.stats.accepted >= 0.99 * output.stats.drafted > 20


def test_only_shared_tokens_are_drafted(engine, partial):
    one = engine(draft_model=partial)
    params = SamplingParams(temperature=1.5, max_tokens=LENGTH)
    propose, seen = one.proposer.propose, set()

    def spying(decodes, alone):
        draft = propose(decodes)
        seen.update(token for tokens in draft.tokens for token in tokens)
        return draft

    one.proposer.propose = spying
    one.generate(PROMPTS, params)
    assert len(seen) > 30
    assert all(token % 3 for token in seen)


def test_chains_of_a_draft_with_the_first_tokens_are_one_call(engine, fewer, permuted):
    """They may end by themselves, too."""
    for draft, whole in ((fewer, True), (permuted, False)):
        proposer = engine(draft_model=draft).proposer
        assert (proposer.guesser.at_once is not None) == whole
        assert (proposer.confidence is not None) == whole


def test_what_a_draft_does_not_know_is_read_as_what_it_knows(engine, fewer):
    """Its embeddings end before."""
    one = engine(draft_model=fewer)
    kernels, read = one.proposer.guesser.runner.by_kernels, []
    chains = kernels.chains

    def spying(first, *others, **named):
        read.extend(first.tokens)
        return chains(first, *others, **named)

    kernels.chains = spying
    one.generate([[3, 92, 95, 90, 4]], SamplingParams(temperature=0, max_tokens=8))
    assert len(read) > 5
    assert max(read) < 90


def test_a_draft_on_two_ranks_with_a_padded_vocabulary(engine, target, tmp_path):
    draft = make_checkpoint(tmp_path / "draft", vocab_size=104, seed=4)
    write_words(draft, [f"t{index}" for index in range(96)])
    parallel = {"tensor_parallel_size": 2, "draft_tensor_parallel_size": 2}
    outputs = engine(draft_model=draft, **parallel).generate(
        PROMPTS, SamplingParams(temperature=0, max_tokens=LENGTH)
    )
    assert [o.token_ids for o in outputs] == hf_greedy(target, PROMPTS, LENGTH)
    assert sum(o.stats.drafted for o in outputs)


def test_the_overlap_is_reported(engine, partial, caplog):
    with caplog.at_level("INFO", "tandem"):
        engine(draft_model=partial)
    assert f"{partial} shares 64 of the 96 tokens" in caplog.text
    assert "(67 %)" in caplog.text


def test_too_little_overlap_is_refused(engine, target, tmp_path):
    words = [f"t{token}" if token < 9 else f"own{token}" for token in range(96)]
    draft = renumbered(target, tmp_path / "draft", list(range(96)), words)
    with pytest.raises(ConfigError, match=r"shares 9 of the 96 tokens .* at least 10%"):
        engine(draft_model=draft)


def vocabulary(folder, tokens, decoder, merges=(), special=(), size=None, ends=()):
    folder.mkdir()
    model = BPE({token: index for index, token in enumerate(tokens)}, list(merges))
    tokenizer = HFTokenizer(model)
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    size = size or len(tokens) + len(special)
    return Vocabulary(folder.name, Tokenizer(folder), size, ends)


def test_spellings_are_compared_as_bytes(tmp_path):
    """GPT-2's alphabet against sentencepiece's; ends of text meet whatever they are called."""
    ours = vocabulary(
        tmp_path / "ours",
        ["Ġ", "a", "b", "Ċ", "Ã", "©", "é", "Ġa", "ab"],
        decoders.ByteLevel(),
        [("Ġ", "a"), ("a", "b")],
        special=["<|end|>", "<|pad|>"],
        ends=(9,),
    )
    theirs = vocabulary(
        tmp_path / "theirs",
        ["a", "b", "▁", "▁a", "<0x0A>", "<0xC3>", "é"],
        decoders.Replace("▁", " "),
        [("▁", "a")],
        special=["</s>", "<|pad|>"],
        ends=(7,),
    )
    found = translate(ours, theirs)
    pairs = dict(zip(found.ours.tolist(), found.theirs.tolist(), strict=True))
    # Here é is the byte 0xE9 alone, there the letter: not the same.
    assert pairs == {0: 2, 1: 0, 2: 1, 3: 4, 4: 5, 7: 3, 9: 7, 10: 8}
    assert found.read_as[8] == 1  # ab: a, b
    logits = found.logits(torch.arange(9.0)[None])
    assert logits[0, [0, 7, 9]].tolist() == [2.0, 3.0, 7.0]
    assert logits[0, [5, 6, 8]].tolist() == [-torch.inf] * 3


def test_a_character_is_not_taken_for_its_byte(tmp_path):
    """sentencepiece has both `.` and <0x2E>, and writes the former."""
    tokens = ["<unk>", "<0x2E>", "<0xC3>", "a", ".", "A"]
    one = vocabulary(tmp_path / "one", tokens, decoders.Replace("▁", " "), size=8)
    same = vocabulary(tmp_path / "same", tokens, decoders.Replace("▁", " "))
    pairs = translate(one, same)
    assert pairs.ours.tolist() == pairs.theirs.tolist() == [0, 1, 2, 3, 4, 5]
    bytes_alone = vocabulary(tmp_path / "bytes", [".", "a"], decoders.ByteLevel())
    assert translate(bytes_alone, one).read_as.tolist() == [4, 3]


def test_ends_of_text_meet_in_order(tmp_path):
    level = decoders.ByteLevel()
    ours = vocabulary(tmp_path / "a", ["a"], level, special=["<end>", "<turn>"], ends=(1, 2, 7))
    theirs = vocabulary(tmp_path / "b", ["a"], level, special=["<eos>", "<eot>"], ends=(1, 2))
    assert translate(ours, theirs).read_as.tolist() == [0, 1, 2]
    theirs = vocabulary(tmp_path / "c", ["a"], level, special=["<eot>"], ends=(1,))
    assert translate(ours, theirs).read_as.tolist() == [0, 1, 1]


def test_the_same_tokens_need_no_translation(tmp_path):
    one = vocabulary(tmp_path / "one", ["a", "b"], decoders.ByteLevel())
    assert translate(one, vocabulary(tmp_path / "two", ["a", "b"], decoders.ByteLevel())) is None
    padded = vocabulary(tmp_path / "three", ["a", "b"], decoders.ByteLevel(), size=5)
    found = translate(one, padded)
    assert found.ours.tolist() == [0, 1]
    assert not found.same_ids


def test_the_first_tokens_are_the_same(tmp_path):
    """Those that stand for nothing too: no text has them, so that nobody minds."""
    level = decoders.ByteLevel()
    ours = vocabulary(tmp_path / "ours", ["a", "b", "c"], level, size=6)
    fewer = translate(ours, vocabulary(tmp_path / "fewer", ["a", "b"], level))
    assert fewer.same_ids
    assert fewer.read_as.tolist() == [0, 1, 0, 0, 0, 0]
    padded = translate(ours, vocabulary(tmp_path / "padded", ["a", "b", "c"], level, size=5))
    assert padded.same_ids
    assert padded.ours.tolist() == padded.theirs.tolist() == [0, 1, 2, 3, 4]
    assert padded.read_as.tolist() == [0, 1, 2, 3, 4, 0]
    lacking = vocabulary(tmp_path / "lacking", ["a"], level, size=4)
    other = vocabulary(tmp_path / "other", ["b", "a"], level)
    assert not translate(ours, lacking).same_ids
    assert not translate(ours, other).same_ids
