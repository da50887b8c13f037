"""Checkpoints that cannot be served: each is refused in a sentence that says what is wrong."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tandem import SamplingParams
from tandem.errors import CheckpointError, ConfigError, TandemError
from tests.engine.checkpoints import make_checkpoint

Refuse = Callable[..., str]


@pytest.fixture
def copy(target: Path, tmp_path: Path) -> Path:
    """A copy of the target to be damaged."""
    return Path(shutil.copytree(target, tmp_path / "copy"))


@pytest.fixture
def refusal(engine) -> Refuse:
    """Starts an engine that must not start; the sentence that says why."""

    def refuse(kind: type[TandemError] = CheckpointError, **parameters: Any) -> str:
        with pytest.raises(kind) as caught:
            engine(**parameters)
        text = str(caught.value)
        assert text.endswith("."), text
        assert "\n" not in text
        return text

    return refuse


def edit_config(folder: Path, **changes: Any) -> None:
    """Changes keys of config.json; None removes one."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def edit_weights(folder: Path, change: Callable[[dict], Any]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})


# -- config.json -------------------------------------------------------------------------------


def test_a_missing_folder(refusal, tmp_path):
    folder = tmp_path / "nowhere"
    assert f"{folder}/config.json does not exist" in refusal(model=folder)


def test_a_file_in_place_of_the_folder(refusal, tmp_path):
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refusal(model=tmp_path / "file")


def test_a_missing_config(refusal, copy):
    (copy / "config.json").unlink()
    assert "config.json does not exist" in refusal(model=copy)


@pytest.mark.parametrize("text", ["{", "", "\xff", "[1]", "3"])
def test_a_malformed_config(refusal, copy, text):
    (copy / "config.json").write_text(text, encoding="latin-1")
    assert f"{copy}/config.json" in refusal(model=copy)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "rms_norm_eps"])
def test_a_missing_key_is_named(refusal, copy, key):
    edit_config(copy, **{key: None})
    assert repr(key) in refusal(model=copy)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "wide"},
        {"num_attention_heads": 0},
        {"num_attention_heads": [4]},
        {"eos_token_id": "end"},
        {"eos_token_id": ["end"]},
        {"architectures": 3},
        {"rope_parameters": "default"},
        {"rope_parameters": {"rope_type": "llama3"}},
    ],
)
def test_a_key_of_the_wrong_kind_is_refused(refusal, copy, change):
    edit_config(copy, **change)
    assert str(copy) in refusal(model=copy)


@pytest.mark.parametrize("names", [["GPT2LMHeadModel"], None])
def test_an_unsupported_architecture(refusal, copy, names):
    edit_config(copy, architectures=names)
    text = refusal(model=copy)
    assert f"architecture {names[0] if names else 'none'}" in text
    assert "LlamaForCausalLM" in text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, "'linear'"),
        ({"hidden_act": "gelu"}, "hidden_act to 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_the_decoder_does_not_do_is_named(refusal, copy, change, named):
    edit_config(copy, **change)
    assert named in refusal(model=copy)


def test_an_unknown_dtype(refusal, engine, copy):
    edit_config(copy, dtype="float64")
    text = refusal(model=copy)
    assert "float64" in text
    assert "set dtype" in text
    engine(model=copy, dtype="float32")


def test_an_end_of_sequence_outside_the_vocabulary_ends_nothing(engine, copy):
    edit_config(copy, eos_token_id=[500, 3])
    (copy / "generation_config.json").unlink()
    one = engine(model=copy)
    assert one.limits.eos_ids == {3}
    (output,) = one.generate([1], SamplingParams(min_tokens=4, max_tokens=4))
    assert len(output.token_ids) == 4


# -- lengths -----------------------------------------------------------------------------------


def test_a_sliding_window_is_refused_above_and_allowed_within(refusal, engine, tmp_path):
    folder = make_checkpoint(tmp_path / "window", "mistral", sliding_window=64)
    assert "max_model_len to at most 64" in refusal(ConfigError, model=folder)
    assert "window of 64" in refusal(ConfigError, model=folder, max_model_len=65)
    assert engine(model=folder, max_model_len=64).limits.max_model_len == 64


def test_a_length_beyond_the_models_positions(refusal):
    text = refusal(ConfigError, max_model_len=257)
    assert "257" in text
    assert "at most 256" in text


def test_a_pool_too_small_says_what_to_set(refusal, engine):
    text = refusal(ConfigError, kv_cache_memory=1000)
    (enough,) = re.findall(r"set kv_cache_memory to (\d+)", text)
    assert "256 tokens" in text
    refusal(ConfigError, kv_cache_memory=int(enough) - 1)
    engine(kv_cache_memory=int(enough))


def test_where_others_hold_the_memory_it_says_so(refusal, monkeypatch):
    """As on a GPU, most of which an earlier load of the same model was given."""
    monkeypatch.setattr("tandem.assembly.free_memory", lambda *_: {0: 0})
    text = refusal(ConfigError, kv_cache_memory=None)
    assert "an earlier load of this one, may hold the rest" in text
    assert "holds 0 blocks" in text


# -- weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(refusal, copy, name):
    edit_weights(copy, lambda weights: weights.pop(name))
    assert f"lacks the tensor {name}" in refusal(model=copy)


def test_a_misshapen_tensor_is_named_with_both_shapes(refusal, copy):
    name = "model.layers.0.self_attn.k_proj.weight"
    edit_weights(copy, lambda weights: weights.update({name: weights[name][:-1].clone()}))
    text = refusal(model=copy)
    assert name in text
    assert "[23, 48]" in text
    assert "[24, 48]" in text


@pytest.mark.parametrize("length", [0, 4, 200, -1])
def test_a_truncated_file_is_named(refusal, copy, length):
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert f"{path} cannot be read" in refusal(model=copy)


def test_no_weights_at_all(refusal, copy):
    (copy / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(model=copy)


def test_a_missing_shard_is_named(refusal, tmp_path):
    folder = make_checkpoint(tmp_path / "shards", max_shard_size="40KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(model=folder)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_malformed_index(refusal, tmp_path, index):
    folder = make_checkpoint(tmp_path / "shards", max_shard_size="40KB")
    (folder / "model.safetensors.index.json").write_text(index)
    assert str(folder) in refusal(model=folder)


# -- tokenizers and drafts ---------------------------------------------------------------------


def test_a_missing_tokenizer(refusal, copy):
    (copy / "tokenizer.json").unlink()
    assert f"{copy}/tokenizer.json does not exist" in refusal(model=copy)


@pytest.mark.parametrize("text", ["{", "{}", "\xff"])
def test_a_malformed_tokenizer(refusal, copy, text):
    (copy / "tokenizer.json").write_text(text, encoding="latin-1")
    assert f"{copy}/tokenizer.json cannot be read" in refusal(model=copy)


def test_a_draft_of_another_size_needs_a_tokenizer_of_its_own(refusal, tmp_path):
    draft = make_checkpoint(tmp_path / "draft", vocab_size=64)
    (draft / "tokenizer.json").unlink()
    assert f"{draft}/tokenizer.json does not exist" in refusal(draft_model=draft)


def test_a_draft_needs_no_tokenizer_of_its_own(engine, copy):
    (copy / "tokenizer.json").unlink()
    [output] = engine(draft_model=copy).generate([[1, 2, 3]])
    assert output.stats.drafted


def test_a_broken_draft_is_named(refusal, copy):
    (copy / "model.safetensors").unlink()
    assert f"{copy}/model.safetensors" in refusal(draft_model=copy)


# -- devices -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cuda:77", "tpu", "", "cpu:x"])
def test_a_device_that_does_not_exist(refusal, name):
    text = refusal(ConfigError, devices=name)
    assert repr(name) in text
    assert "choose cpu or auto" in text
