"""Heads over hidden states of the target: lossless whatever they guess, guessing as published."""

import json
import random
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem import SamplingParams
from tandem.drafting.heads.checkpoint import read_head
from tandem.errors import CheckpointError
from tests.engine.checkpoints import make_checkpoint
from tests.engine.head_reference import GUESSES, Reference
from tests.engine.heads import (
    HIDDEN,
    METHODS,
    VOCAB,
    Shape,
    drafting,
    make_head,
)
from tests.engine.kernels import stored
from tests.engine.policy_world import always_pays, by_whim
from tests.engine.references import hf_greedy

DAMAGED = {
    "eagle": "fc.weight",
    "eagle3": "midlayer.self_attn.k_proj.weight",
    "eagle31": "fc_norm.0.weight",
    "peagle": "layers.1.mlp.up_proj.weight",
    "mtp": "model.mtp_layers.0.final_layernorm.weight",
    "mtp3": "model.mtp_layers.2.input_proj.weight",
    "medusa": "1.0.linear.weight",
    "mlp_speculator": "speculator.proj.1.weight",
    "mlp_tied": "speculator.proj.1.weight",
}
LENGTH = 40
WITHOUT_KV = ("medusa", "mlp_speculator", "mlp_tied")
SHAPE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
TREES = {"chain": {}, "dynamic": {"speculative_tree": 3}, "static": {"speculative_tree": SHAPE}}


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Folder of each method's head."""
    folder = tmp_path_factory.mktemp("heads")
    return {method: make_head(folder / method, method) for method in METHODS}


@pytest.fixture(scope="module")
def prompts():
    rng = random.Random(11)
    return [rng.choices(range(VOCAB), k=rng.randrange(2, 50)) for _ in range(10)]


@pytest.fixture(scope="module")
def expected(target, prompts):
    return hf_greedy(target, prompts, LENGTH)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "more",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 6, "max_num_batched_tokens": 16},
        {"max_num_seqs": 6, "kv_cache_memory": "105KiB", "block_size": 4, "max_model_len": 100},
    ],
    ids=["alone", "chunked", "preempted"],
)
def test_greedy_text_is_the_targets_own(engine, heads, prompts, expected, method, tree, more):
    if "kv_cache_memory" in more and method not in WITHOUT_KV:
        more = more | {"kv_cache_memory": "160KiB"}
    parameters = drafting(method, heads[method])
    one = engine(**parameters, num_speculative_tokens=6, **TREES[tree], **more)
    outputs = one.generate(prompts, SamplingParams(temperature=0, max_tokens=LENGTH))
    assert [output.token_ids for output in outputs] == expected
    assert all(output.stats.drafted for output in outputs)
    if "kv_cache_memory" in more:
        assert one.scheduler.num_preemptions


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("method", METHODS)
def test_a_seed_decides_the_text(engine, heads, prompts, method, tree):
    params = [SamplingParams(seed=i, max_tokens=LENGTH, top_k=30) for i in range(len(prompts))]
    plain = engine().generate(prompts, params)
    parameters = drafting(method, heads[method])
    outputs = engine(**parameters, **TREES[tree]).generate(prompts, params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]


@pytest.mark.parametrize("tree", TREES)
def test_a_prompt_longer_than_a_step_is_read_first(engine, good_draft, target, tree):
    prompt = list(range(90))
    one = engine(draft_model=good_draft, max_num_batched_tokens=16, max_num_seqs=8, **TREES[tree])
    (output,) = one.generate([prompt], SamplingParams(temperature=0, max_tokens=LENGTH))
    assert output.token_ids == hf_greedy(target, [prompt], LENGTH)[0]
    assert output.stats.drafted


def test_a_static_tree_is_drafted_whole(engine, good_draft):
    """Of a level more nodes lead on than a node has children."""
    shape = [[0], [1], [0, 0], [0, 1], [1, 0], [1, 1], [0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]]
    one = engine(draft_model=good_draft, speculative_tree=shape, num_speculative_tokens=len(shape))
    (output,) = one.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=60))
    assert output.stats.drafted >= 8 * output.stats.rounds


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x04K\x01."])
def test_an_unreadable_pickle_is_a_sentence(engine, tmp_path, content):
    folder = make_head(tmp_path / "head", "medusa")
    (folder / "medusa_lm_head.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        engine(speculative_method="medusa", draft_model=folder)


@pytest.mark.parametrize(("k", "tree", "told"), [(4, None, True), (3, None, False), (9, 2, False)])
def test_more_tokens_than_there_are_heads_are_told_of(engine, tmp_path, caplog, k, tree, told):
    folder = make_head(tmp_path / "head", "medusa")
    wanted = {"num_speculative_tokens": k, "speculative_tree": tree}
    engine(speculative_method="medusa", draft_model=folder, **wanted)
    assert (f"is {k}, but {folder} guesses at most 3 tokens in a row" in caplog.text) == told


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("method", METHODS)
def test_guesses_are_those_of_the_formula(
    engine, heads, target, prompts, expected, method, monkeypatch
):
    """At every round of some texts, after rejections, in a batch."""
    one = engine(**drafting(method, heads[method]), num_speculative_tokens=GUESSES)
    reference, checked = Reference(target, heads[method], method), 0
    for prompt in prompts[:4]:
        one.add_request(prompt, SamplingParams(temperature=0, max_tokens=12))
    guesser = one.proposer.guesser
    begin, extend = guesser.begin, guesser.extend
    seen = {}

    def spying_begin(decodes):
        logits = begin(decodes)
        for row, decode in enumerate(decodes):
            seen[decode.request.id] = [list(decode.request.tokens), logits[row]]
        return logits

    def spying_extend(levels):
        logits = extend(levels)
        for row, level in enumerate(levels):
            seen[level.request.id].append(logits[row])
        return logits

    guesser.begin, guesser.extend = spying_begin, spying_extend
    # test_chains compares whole chains with this
    monkeypatch.setattr(type(guesser), "at_once", None)
    while not one.idle:
        seen.clear()
        one.step()
        for text, *found in seen.values():
            wanted = reference.first(text)[: len(found)]  # a draft at a text's end is shorter
            for logits, due in zip(found, wanted, strict=True):
                largest = due[due.isfinite()].abs().max().item()  # of tokens that it knows
                atol = 1e-4 * largest  # EAGLE's hidden states have no norm
                torch.testing.assert_close(logits, due, atol=atol, rtol=1e-3)
            checked += len(found) == GUESSES
    assert checked > 25


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("damage", ["missing", "misshapen"])
def test_a_damaged_head_is_refused_by_the_tensors_name(engine, tmp_path, method, damage):
    folder = make_head(tmp_path / method, method)
    head = read_head(folder)
    name = DAMAGED[method]
    tensors = dict(head.tensors.items())
    if damage == "missing":
        del tensors[name]
    else:
        tensors[name] = torch.zeros(3, 5)
    write(folder, method, tensors)
    with pytest.raises(CheckpointError, match=re.escape(name)):
        engine(**drafting(method, folder))


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("eagle3", {"draft_vocab_size": "many"}),
        ("eagle3", {"eagle_config": "x"}),
        ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": 3}}),
        ("eagle", {"num_attention_heads": 0}),
        ("eagle", {"hidden_size": None}),
        ("eagle", {"rope_parameters": {"rope_type": "llama3"}}),
        ("mlp_speculator", {"n_predict": 0}),
        ("mlp_speculator", {"n_predict": "x"}),
        ("peagle", {"transformer_layer_config": [1]}),
        ("peagle", {"mask_token_id": [1]}),
        ("peagle", {"mask_token_id": -1}),
        ("peagle", {"mask_token_id": VOCAB + 1}),
        ("peagle", {"mask_token_id": None}),
        ("peagle", {"vocab_size": 5}),
    ],
    ids=str,
)
def test_a_malformed_config_is_one_sentence(engine, tmp_path, method, change):
    folder = make_head(tmp_path / "head", method, **change)
    with pytest.raises(CheckpointError, match=str(folder)) as caught:
        engine(**drafting(method, folder))
    assert str(caught.value).endswith(".")


def write(folder, method, tensors):
    if method == "medusa":
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file(tensors, folder / "model.safetensors")


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("tree", ["chain", "dynamic"])
@pytest.mark.parametrize("method", [*METHODS, "draft_model", "suffix", "suffix,eagle3"])
def test_kv_after_rollbacks_and_cached_prefixes_is_that_of_a_fresh_pass_bit_for_bit(
    engine, heads, good_draft, prompts, method, tree
):
    """Texts that share beginnings of several blocks and go on differently, in any order: the KV of
    the target and of whatever guesses."""
    shared = prompts[0][:1] * 3 + list(range(20))
    others = {
        "draft_model": {"draft_model": good_draft},
        "suffix": {"speculative_method": "suffix"},
    }
    mixed = {"draft_model": heads["eagle3"], "adaptive_speculation": True}
    others["suffix,eagle3"] = mixed | {"speculative_method": method}
    parameters = others.get(method) or drafting(method, heads[method])
    parameters = parameters | TREES[tree]
    one = engine(**parameters, block_size=4, num_speculative_tokens=5)
    if "," in method:
        by_whim(one, 3)
    params = [SamplingParams(seed=seed, max_tokens=30) for seed in range(4)]
    for size in (16, 12, 23, 22):  # the first ones go on as no later prompt does
        one.generate([shared[:size]] * 4, params)
    if "," in method:
        keep_states(one)
    one.add_request(shared[:22], SamplingParams(seed=9, max_tokens=30))
    one.step()
    (request,) = one.scheduler.running
    while len(request.tokens) < 40:
        one.step()
    text = list(request.tokens)
    fresh = engine(**parameters, block_size=4, enable_prefix_caching=False)
    if "," in method:
        always_pays(fresh)
    fresh.add_request(text, SamplingParams(temperature=0, max_tokens=20))
    for _ in range(2):  # a draft model reads its text in its first round
        fresh.step()
    (other,) = fresh.scheduler.running
    lengths = (len(text) - 1, min(request.draft_computed, other.draft_computed))
    assert lengths[1] >= 22 or not caches(one)[1:]
    for own, wanted, length in zip(caches(one), caches(fresh), lengths, strict=False):
        found, due = own[:, slots(request)[:length]], wanted[:, slots(other)[:length]]
        assert torch.equal(found, due)


def keep_states(one):
    """From now on."""
    sparing = one.proposer._drafter.sparing
    sparing.spares, sparing.look = False, lambda *_: None


def slots(request):
    return [block * 4 + offset for block in request.blocks for offset in range(4)]


def caches(one):
    """KV of the target, and of the guesser where it has any, slot by slot."""
    mixed = getattr(one.proposer, "model", None)
    guesser = getattr(mixed.proposer if mixed else one.proposer, "guesser", None)
    owners = (one.target, getattr(guesser, "runner", None))
    return [stored(owner) for owner in owners if hasattr(owner, "by_kernels")]


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("method", METHODS)
def test_a_target_in_bfloat16_has_a_head_too(engine, heads, prompts, method):
    """Whatever its own number format is then."""
    params = SamplingParams(temperature=0, max_tokens=12)
    one = engine(**drafting(method, heads[method]), dtype="bfloat16")
    outputs = one.generate(prompts[:3], params)
    assert sum(output.stats.drafted for output in outputs)
    if one.target.by_kernels is not None:  # plain decoding has the same bits
        plain = engine(dtype="bfloat16").generate(prompts[:3], params)
        assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]


@pytest.mark.parametrize("method", METHODS)
def test_a_target_of_two_ranks_has_a_head_too(engine, heads, prompts, expected, method):
    one = engine(**drafting(method, heads[method]), tensor_parallel_size=2)
    outputs = one.generate(prompts, SamplingParams(temperature=0, max_tokens=LENGTH))
    assert [output.token_ids for output in outputs] == expected
    assert sum(output.stats.drafted for output in outputs)


def test_mimo_runs_by_its_own_module(engine, tmp_path):
    """A Qwen2 whose folder has a module for MTP."""
    qwen = make_checkpoint(tmp_path / "qwen", "qwen2", seed=3)
    make_head(tmp_path / "mimo", "mtp")
    ours, layers = tmp_path / "mimo", load_file(qwen / "model.safetensors")
    save_file(layers | load_file(ours / "model.safetensors"), ours / "model.safetensors")
    own = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "attention_bias": True}
    own |= {"num_nextn_predict_layers": 1}
    config = json.loads((qwen / "config.json").read_text()) | own
    (ours / "config.json").write_text(json.dumps(config))
    shutil.copy(qwen / "tokenizer.json", ours)
    one = engine(model=ours, speculative_method="mtp", num_speculative_tokens=3)
    prompts = [[1, 2, 3, 4], [7, 8], [9, 9, 9]]
    outputs = one.generate(prompts, SamplingParams(temperature=0, max_tokens=LENGTH))
    assert [output.token_ids for output in outputs] == hf_greedy(qwen, prompts, LENGTH)
    assert all(output.stats.drafted for output in outputs)


@pytest.mark.parametrize("method", ["eagle", "mtp"])
@pytest.mark.parametrize("hidden", [HIDDEN // 2, HIDDEN * 2])
def test_a_head_for_a_target_of_another_width_is_refused(engine, tmp_path, method, hidden):
    shape = Shape(hidden=hidden)
    folder = make_head(tmp_path / "head", method, shape=shape, head_dim=hidden // shape.heads)
    with pytest.raises(CheckpointError, match=f"of {hidden} numbers, the target has {HIDDEN}"):
        engine(**drafting(method, folder))


def test_layers_that_the_target_lacks_are_refused(engine, tmp_path):
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 7]}
    folder = make_head(tmp_path / "head", "eagle3", eagle_config=ids)
    with pytest.raises(CheckpointError, match=r"reads the layers \[0, 7\], but the target has 2"):
        engine(speculative_method="eagle3", draft_model=folder)
