"""The CPU kernels: torch's numbers, and the same bits whatever is computed beside a row."""

import mmap
import random
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from tandem.attention.plan import Query
from tandem.cpu import library
from tandem.cpu.decoder import Room
from tandem.cpu.library import load_kernels
from tandem.cpu.linear import KernelLinear
from tandem.cpu.memory import zeros
from tandem.models.config import read_model_config
from tandem.runners.model_runner import ModelRunner
from tests.engine.checkpoints import make_checkpoint
from tests.engine.kernels import OLDER, TILES, TWOS, WIDE, compiled_for, has, stored
from tests.engine.references import logits_of

TARGET = Path(__file__).parents[2] / "model_repository" / "tandem" / "1" / "target"

SHAPES = {
    "even": ("llama", {}),
    "odd": (
        "llama",
        {"hidden_size": 44, "intermediate_size": 37, "head_dim": 10, "mlp_bias": True},
    ),
    "norms": ("qwen3", {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 72}),
    "biases": ("qwen2", {}),
    "tiles": ("llama", {"head_dim": 64, "num_attention_heads": 6, "num_key_value_heads": 2}),
    "one for many": (
        "llama",
        {"hidden_size": 60, "head_dim": 32, "num_attention_heads": 20, "num_key_value_heads": 1},
    ),
    "three tiles": ("llama", {"head_dim": 96, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "a wide head": ("llama", {"head_dim": 80, "num_attention_heads": 6, "num_key_value_heads": 1}),
}
BLOCKS = [7, 8, 2, 9, 1, 0, 11, 10, 4, 5]
TREE = [-1, -1, 0, 0, 1, 2, 2, 4, 3, 5]
RNG = random.Random(6)
TEXT = RNG.choices(range(96), k=92)  # the draft goes beyond its last 32 positions
NODES = RNG.choices(range(96), k=len(TREE))
PROCESSORS = ("native", OLDER, WIDE, TWOS)
KINDS = ((torch.float32, "native"), *((torch.bfloat16, one) for one in PROCESSORS))


def make_runner(folder, shape, dtype, processor):
    family, overrides = SHAPES[shape]
    make_checkpoint(folder, family, seed=3, **overrides)
    with compiled_for(processor):
        made = ModelRunner(folder, read_model_config(folder), dtype, torch.device("cpu"))
        made.allocate(num_blocks=12, block_size=16)
    assert made.by_kernels is not None
    return made


@pytest.fixture(params=[(shape, *kind) for shape in SHAPES for kind in KINDS], ids=str)
def runner(request, tmp_path):
    return make_runner(tmp_path, *request.param)


def read(runner, chunks=(92,)):
    """Has the runner read the text; all logits, and what lies in its cache then."""
    runner.cache.data.zero_()
    parts, start = [], 0
    for length in chunks:
        tokens = TEXT[start : start + length]
        parts.append(logits_of(runner, tokens, [Query(BLOCKS, start, length)]))
        start += length
    return torch.cat(parts), runner.cache.data.clone()


def rounds_inputs(processor):
    """Whether linear layers of bfloat16 read their inputs as bfloat16 there."""
    return processor == TWOS or (processor == "native" and (has("avx512_bf16") or has("amx_bf16")))


def path_to(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def test_numbers_are_torchs(runner):
    tree = Query(BLOCKS, len(TEXT), len(TREE), TREE)
    found = [read(runner)[0], *runner.forward(NODES, [tree], None, (0, 2))[:2]]
    runner.by_kernels = None
    expected = [read(runner)[0], *runner.forward(NODES, [tree], None, (0, 2))[:2]]
    tolerance = 1e-4 if runner.dtype == torch.float32 else 0.15
    for own, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(own, wanted.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("processor", ["native", TWOS])
def test_how_exact_inputs_of_bfloat16_are(tmp_path, processor):
    """Products of bfloat16 take 8 of a float's 24 bits, as a model does that is computed in
    bfloat16 throughout, but nothing else does."""
    exact, own = (
        read(make_runner(tmp_path / one, "tiles", torch.bfloat16, one))[0]
        for one in (OLDER, processor)
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / OLDER, dtype=torch.bfloat16)
    with torch.inference_mode():
        throughout = model(torch.tensor([TEXT])).logits[0].float()
    assert (own - exact).abs().mean() < 0.7 * (throughout - exact).abs().mean()


def test_a_text_read_in_chunks_has_the_same_bits(runner):
    logits, cache = read(runner)
    others = read(runner, (1, 5, 40, 46))
    assert torch.equal(logits, others[0])
    assert torch.equal(cache, others[1])


@pytest.mark.parametrize("parents", [None, TREE], ids=["chain", "tree"])
def test_a_draft_has_the_bits_of_plain_decoding(runner, parents):
    """Every node, and its hidden states, as if its path had been decoded token by token."""
    _, before = read(runner)
    start = len(TEXT)
    query = Query(BLOCKS, start, len(TREE), parents)
    drafted, features, _ = runner.forward(NODES, [query], None, (0, 2))
    logits = drafted.clone()
    chain = parents or range(-1, len(TREE) - 1)
    for node in range(len(TREE)):
        runner.cache.data.copy_(before)
        for depth, step in enumerate(path_to(chain, node)):
            one = Query(BLOCKS, start + depth, 1)
            plain, tapped, _ = runner.forward([NODES[step]], [one], None, (0, 2))
        assert torch.equal(plain[0], logits[node])
        assert torch.equal(tapped[0], features[node])


def test_a_tree_grown_level_by_level_has_the_bits_of_one_pass(runner):
    read(runner)
    whole = logits_of(runner, NODES, [Query(BLOCKS, len(TEXT), len(TREE), TREE)])
    parts = []
    for begin, end in ((0, 2), (2, 7), (7, 10)):
        query = Query(BLOCKS, len(TEXT), end - begin, TREE[:end], begin)
        parts.append(logits_of(runner, NODES[begin:end], [query]))
    assert torch.equal(torch.cat(parts), whole)


def test_strangers_and_threads_change_no_bit(runner):
    """Alone with one thread, and in a batch of three with two."""
    _, before = read(runner)
    own = Query(BLOCKS, len(TEXT), 3)
    alone = logits_of(runner, NODES[:3], [own])
    runner.cache.data.copy_(before)
    others = [Query([3], 0, 9), own, Query([6], 0, 1)]
    runner.by_kernels._model.threads = 2
    batch = logits_of(runner, [*range(9), *NODES[:3], 5], others)
    assert torch.equal(batch[9:12], alone)


@pytest.mark.parametrize(
    "rows", [[], [9], [0, 11, 12], [0, 1, 5, 6, 9, 12, 13], [44, 45, 11, 4, 3, 3]], ids=str
)
def test_rows_that_nobody_asks_for_change_no_bit(runner, rows):
    """They end at the last layer's keys and values, unless their hidden states are wanted."""
    read(runner)
    tree, chain = Query(BLOCKS, len(TEXT), len(TREE), TREE), Query([3, 6, 10], 0, 36)
    tokens, queries = [*NODES, *TEXT[:36]], [tree, chain]
    found = []
    for taps in (None, (0, 2), (len(runner.model.layers),), ()):
        runner.cache.data[:, -64:] = 0
        passed = runner.forward(tokens, queries, rows, taps)
        found.append((passed.logits.clone(), passed.best, runner.cache.data.clone()))
        if taps not in (None, (0, 2)):
            ends = runner.by_kernels.forward(tokens, queries, rows, taps, picks_hidden=True)
            assert torch.equal(ends.logits, found[-1][0])
            assert torch.equal(ends.features, passed.features[rows])
    whole = logits_of(runner, tokens, queries)
    for logits, best, cache in found:
        assert torch.equal(logits, whole[rows])
        assert best == whole[rows].numpy().argmax(-1).tolist()
        assert torch.equal(cache, found[0][2])


def test_memory_is_zero_whatever_pages_the_system_has(monkeypatch):
    class Plain(mmap.mmap):
        def madvise(self, *arguments):
            raise OSError

    for kind in (mmap.mmap, Plain):
        monkeypatch.setattr("tandem.cpu.memory.mmap.mmap", kind)
        for shape in ([3, 5], [0, 4], [1 << 20]):
            assert torch.equal(zeros(shape, torch.float32), torch.zeros(shape))


def test_hidden_states_without_taps_are_those_behind_the_last_norm(runner):
    read(runner)
    query = Query(BLOCKS, len(TEXT), 4)
    logits, hidden, _ = runner.forward(NODES[:4], [query], [1, 3], ())
    assert torch.equal(runner.model.head.kernel(hidden)[[1, 3]], logits)
    empty, *_ = runner.forward(NODES[:4], [query], [], None)
    assert empty.shape == (0, 96)


def test_logits_lie_in_one_place_whatever_their_number():
    room = Room(7)
    for count in (2, 5, 5, 1, 9, 0):
        rows = room.rows(count)
        assert rows.shape == (count, 7)
        assert rows.data_ptr() == (room.address if count else 0)
        assert room.rows(count) is rows


def test_a_pass_finds_the_first_of_the_best(runner):
    query, rows = Query(BLOCKS, 0, 4), [0, 1, 3]
    passed = runner.forward(NODES[:4], [query], rows, None)
    assert passed.best == passed.logits.numpy().argmax(-1).tolist()
    assert len(set(passed.best)) > 1
    runner.model.head.kernel.memory.zero_()
    equal = runner.forward(NODES[:4], [query], rows, None)
    assert equal.best == [0, 0, 0]


@pytest.mark.parametrize(("dtype", "processor"), KINDS, ids=str)
@pytest.mark.parametrize("inner", [1, 16, 37])
@pytest.mark.parametrize("biased", [False, True])
def test_gates_are_packed_beside_what_they_are_the_gates_of(dtype, processor, inner, biased):
    """By themselves such outputs are where any others are."""
    generator = torch.Generator().manual_seed(inner)
    weight = torch.randn(2 * inner, 35, generator=generator).to(dtype)
    bias = torch.randn(2 * inner, generator=generator) if biased else None
    x = torch.randn(20, 35, generator=generator)
    with compiled_for(processor) as kernels:
        plain, gated = (KernelLinear(kernels, weight, bias, None, one) for one in (False, True))
    assert torch.equal(gated(x), plain(x))


@pytest.mark.parametrize(("dtype", "processor"), KINDS, ids=str)
@pytest.mark.parametrize("rows, columns", [(1, 5), (7, 16), (34, 35), (130, 64)])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 9, 20])
def test_a_linear_layer(dtype, processor, rows, columns, batch):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, columns, generator=generator).to(dtype)
    bias = torch.randn(rows, generator=generator).to(dtype)
    x = torch.randn(batch, 2, columns, generator=generator)
    with compiled_for(processor) as kernels:
        layer = KernelLinear(kernels, weight, bias)
    expected = F.linear(x, weight.float(), bias.float())
    if dtype == torch.bfloat16 and rounds_inputs(processor):  # exact for what is bfloat16 already
        torch.testing.assert_close(layer(x), expected, atol=0.02 * columns**0.5, rtol=0.02)
        x = x.to(dtype).float()
        expected = F.linear(x, weight.float(), bias.float())
    torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(layer(x)[:1], layer(x[:1]))
    assert layer(x.to(dtype)).dtype == dtype


def test_a_linear_layer_without_rows_and_of_another_width():
    layer = KernelLinear(load_kernels(), torch.ones(3, 4), None)
    assert layer(torch.ones(0, 4)).shape == (0, 3)
    with pytest.raises(ValueError, match="5 columns, the weight 4"):
        layer(torch.ones(2, 5))


def test_what_is_no_number_stays_none(tmp_path):
    folder = make_checkpoint(tmp_path, seed=3)
    made = ModelRunner(folder, read_model_config(folder), torch.bfloat16, torch.device("cpu"))
    made.allocate(num_blocks=2, block_size=16)
    made.model.embed.weight[5].view(torch.int16).fill_(0x7FFF)
    passed = made.forward([5], [Query([0], 0, 1)], None, None)
    assert passed.logits.isnan().all()
    assert passed.best == [0]
    assert stored(made)[:, 0].isnan().any()


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("times", [1e6, 1e12, 1e20])
def test_scores_beyond_all_measure_are_scores(tmp_path, processor, times):
    made = make_runner(tmp_path, "tiles", torch.bfloat16, processor)
    read(made)
    keys = made.cache.data.view(len(made.model.layers), -1, 2, 2 * 16 * 64)[:, :, 0]
    keys.mul_(times)
    slot_by_slot = stored(made)
    found = [logits_of(made, [7], [Query(BLOCKS, len(TEXT), 1)])]
    made.cache.data.copy_(slot_by_slot)
    made.by_kernels = None
    found.append(logits_of(made, [7], [Query(BLOCKS, len(TEXT), 1)]))
    assert found[0].isfinite().all()
    torch.testing.assert_close(found[0], found[1].float(), atol=0.15, rtol=0.15)


def test_what_others_left_behind_a_texts_end_changes_no_bit(runner):
    """Slots that are not the text's yet may hold anything, NaN too."""
    tree, one = Query(BLOCKS, len(TEXT), len(TREE), TREE), Query(BLOCKS, len(TEXT), 1)
    found = []
    for left in (0.0, float("nan")):
        runner.cache.data.fill_(left)
        parts = [logits_of(runner, TEXT[:61], [Query(BLOCKS, 0, 61)])]
        parts.append(logits_of(runner, TEXT[61:], [Query(BLOCKS, 61, len(TEXT) - 61)]))
        parts.append(logits_of(runner, [7], [one]))
        parts.append(logits_of(runner, NODES, [tree]))
        found.append(torch.cat(parts))
    assert found[1].isfinite().all()
    assert torch.equal(*found)


@pytest.mark.parametrize("shape", ["even", "tiles"])
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("place", [20, 37])  # among the first rows that attend together, or not
def test_what_is_no_number_does_not_reach_rows_before_it(tmp_path, shape, processor, place):
    made = make_runner(tmp_path, shape, torch.bfloat16, processor)
    made.model.embed.weight[5].view(torch.int16).fill_(0x7FFF)
    tokens = [token if token != 5 else 6 for token in TEXT[:40]]
    alone = [logits_of(made, [token], [Query(BLOCKS, at, 1)]) for at, token in enumerate(tokens)]
    before = made.cache.data[:, BLOCKS[0] * 16 : BLOCKS[0] * 16 + 16].clone()
    made.cache.data.zero_()
    tokens[place] = 5
    chunk = logits_of(made, tokens, [Query(BLOCKS, 0, 40)])
    assert torch.equal(chunk[:place], torch.cat(alone)[:place])
    assert chunk[place].isnan().all()
    assert torch.equal(made.cache.data[:, BLOCKS[0] * 16 : BLOCKS[0] * 16 + 16], before)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("start", [6, 7])
def test_what_is_no_number_in_a_chunk_behind_a_text(tmp_path, processor, start):
    """Its rows sum what they see of the chunk for themselves, the text's last position with it."""
    made = make_runner(tmp_path, "tiles", torch.bfloat16, processor)
    made.model.embed.weight[5].view(torch.int16).fill_(0x7FFF)
    tokens = [token if token != 5 else 6 for token in TEXT[:20]]
    alone = [logits_of(made, [token], [Query(BLOCKS, at, 1)]) for at, token in enumerate(tokens)]
    tokens[12] = 5
    chunk = logits_of(made, tokens[start:], [Query(BLOCKS, start, 20 - start)])
    assert torch.equal(chunk[: 12 - start], torch.cat(alone)[start:12])
    assert chunk[12 - start].isnan().all()


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("kv_head", [0, 1])
def test_values_of_one_kv_head_that_are_no_numbers(tmp_path, processor, kv_head):
    """Token 5 has what makes them infinite, and no other token."""
    folder = make_checkpoint(tmp_path, "llama", seed=3, **SHAPES["tiles"][1])
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.embed_tokens.weight"][:, 0] = 0
    weights["model.embed_tokens.weight"][5, 0] = 10
    values = weights["model.layers.0.self_attn.v_proj.weight"]
    values[kv_head * 64 : (kv_head + 1) * 64, 0] = 3e38
    save_file(weights, path, {"format": "pt"})
    with compiled_for(processor):
        made = ModelRunner(folder, read_model_config(folder), torch.bfloat16, torch.device("cpu"))
        made.allocate(num_blocks=12, block_size=16)
    tokens = [token if token != 5 else 6 for token in TEXT[:20]]
    alone = [logits_of(made, [token], [Query(BLOCKS, at, 1)]) for at, token in enumerate(tokens)]
    tokens[12] = 5
    chunk = logits_of(made, tokens, [Query(BLOCKS, 0, 20)])
    assert torch.equal(chunk[:12], torch.cat(alone)[:12])
    assert not chunk[12].isfinite().all()


@pytest.mark.parametrize("threads", [3, 8])
def test_many_threads_and_few_picked_rows(tmp_path, threads):
    """A pass whose last layer has fewer rows than the others, with nothing passed before."""
    query = Query(BLOCKS, 0, 20)
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        try:
            made = make_runner(tmp_path / str(count), "tiles", torch.bfloat16, "native")
            assert made.by_kernels._model.threads == count
            found.append(logits_of(made, TEXT[:20], [query], [3, 19]))
            found.append(logits_of(made, NODES, [Query(BLOCKS, 20, 10, TREE)]))
        finally:
            torch.set_num_threads(1)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


@pytest.mark.parametrize("block_size", [8, 32])
@pytest.mark.parametrize("start", [5, 32, 63, 64])
@pytest.mark.parametrize("shape", ["odd", "tiles", "a wide head"])
def test_a_tree_of_many_nodes(tmp_path, block_size, start, shape):
    """More than a task takes, behind texts of several lengths, in blocks of other sizes."""
    made = make_runner(tmp_path, shape, torch.bfloat16, "native")
    made.allocate(num_blocks=24, block_size=block_size)
    blocks = list(range(20))
    parents = [-1, *(max(0, node - RNG.randint(1, 4)) for node in range(1, 40))]
    nodes = RNG.choices(range(96), k=40)
    logits_of(made, TEXT[:start], [Query(blocks, 0, start)])
    before = made.cache.data.clone()
    logits = logits_of(made, nodes, [Query(blocks, start, 40, parents)])
    for node in (0, 7, 33, 39):
        made.cache.data.copy_(before)
        path = [nodes[at] for at in path_to(parents, node)]
        chain = logits_of(made, path, [Query(blocks, start, len(path))])
        assert torch.equal(chain[-1], logits[node])


@pytest.mark.parametrize("block_size", [1, 5, 24])
@pytest.mark.parametrize("shape", ["tiles", "odd", "a wide head"])
@pytest.mark.parametrize(("dtype", "processor"), KINDS, ids=str)
def test_blocks_of_any_size_give_the_same_bits(tmp_path, block_size, shape, dtype, processor):
    """Whether keys and values are read as they lie, or gathered."""
    made = make_runner(tmp_path, shape, dtype, processor)
    blocks = list(range(110 // block_size, -1, -1))
    found = []
    for size, table in ((16, BLOCKS), (block_size, blocks)):
        made.allocate(num_blocks=12 if size == 16 else len(blocks), block_size=size)
        text = logits_of(made, TEXT, [Query(table, 0, len(TEXT))])
        tree = logits_of(made, NODES, [Query(table, len(TEXT), len(TREE), TREE)])
        found.append(torch.cat((text, tree)))
    assert torch.equal(*found)


@pytest.mark.parametrize("block_size", [8, 16])
def test_slots_move_as_they_do_in_torch(runner, block_size):
    """All are read before any is written."""
    runner.allocate(num_blocks=6, block_size=block_size)
    runner.cache.data.normal_(generator=torch.Generator().manual_seed(1))
    expected = stored(runner).clone()
    source, target = [3, 16, 17, 40, 5], [16, 17, 3, 41, 21]
    expected[:, target] = expected[:, source]
    runner.move(source, target)
    assert torch.equal(stored(runner), expected)


def test_scores_of_long_texts_take_little_memory(tmp_path):
    """All rows of a chunk at once would take 82 MB of each thread, which it then keeps."""
    family, overrides = SHAPES["one for many"]
    long = {"max_position_embeddings": 32_768, **overrides}
    make_checkpoint(tmp_path, family, seed=3, **long)
    made = ModelRunner(tmp_path, read_model_config(tmp_path), torch.bfloat16, torch.device("cpu"))
    made.allocate(num_blocks=2002, block_size=16)
    made.cache.data.normal_(generator=torch.Generator().manual_seed(1))
    blocks, tokens = list(range(2002)), TEXT[:32]
    one_by_one = [
        logits_of(made, [token], [Query(blocks, 32_000 + at, 1)]) for at, token in enumerate(tokens)
    ]
    before = psutil.Process().memory_info().rss
    chunk = logits_of(made, tokens, [Query(blocks, 32_000, 32)])
    assert psutil.Process().memory_info().rss - before < 40e6
    assert torch.equal(chunk, torch.cat(one_by_one))


@pytest.mark.parametrize("processor", [OLDER, WIDE, TWOS, TILES])
def test_it_compiles_for_processors_that_are_not_at_hand(processor):
    flags = (flag.replace("native", processor) for flag in library.FLAGS)
    command = ("g++", *flags, "-fsyntax-only", str(library.SOURCE))
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[:2000]


@pytest.mark.usefixtures("anew")
def test_it_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_kernels() is not None
    (built,) = tmp_path.glob("tandem/*")
    made = built.stat().st_mtime_ns
    load_kernels.cache_clear()
    assert load_kernels() is not None
    assert built.stat().st_mtime_ns == made


@pytest.mark.usefixtures("anew")
def test_without_a_compiler_torch_computes_and_the_log_says_so(
    monkeypatch, tmp_path, engine, caplog
):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert engine().target.by_kernels is None
    assert "no g++ on this machine" in caplog.text


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("home", ["/proc/nowhere", None])
def test_a_user_without_a_cache_has_the_kernels_too(monkeypatch, tmp_path, home):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    if home is None:
        monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError()))
    else:
        monkeypatch.setenv("HOME", home)
    assert load_kernels() is not None
    assert list(tmp_path.glob("tandem-*/kernels-*.so"))


@pytest.mark.usefixtures("anew")
def test_what_the_compiler_says_is_in_the_log(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "kernels.cpp"
    broken.write_text("int main( {")
    monkeypatch.setattr(library, "SOURCE", broken)
    assert load_kernels() is None
    assert "error: expected" in caplog.text


HOLDS = """
import ctypes, sys
from pathlib import Path
import psutil, torch
from tandem.models.config import read_model_config
from tandem.models.loader import load_decoder

folder = Path(sys.argv[1])
config = read_model_config(folder)
model = load_decoder(folder, config, torch.bfloat16, torch.device("cpu"))
held = psutil.Process().memory_full_info().uss
ctypes.CDLL(None).malloc_trim(0)
print(held - psutil.Process().memory_full_info().uss)
"""


def test_what_loading_freed_goes_back_to_the_system():
    run = subprocess.run(
        [sys.executable, "-c", HOLDS, TARGET], check=True, capture_output=True, text=True
    )
    assert int(run.stdout) < 1 << 20
