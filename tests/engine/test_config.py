"""EngineConfig: every value checked, contradictions named, config.pbtxt's strings understood."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tandem import EngineConfig
from tandem.config import OTHER_NAMES
from tandem.engine_process import interpreter
from tandem.errors import ConfigError

NAN, INF = float("nan"), float("inf")
NUMBER_WORDS = ["many", NAN, INF, "nan", [1], {}, True, False, "true"]
COUNT = [0, -1, 1.5, "0", None, *NUMBER_WORDS]
OPTIONAL_COUNT = [value for value in COUNT if value is not None]
SHAPE, MTP = [[0], [1], [0, 0]], {"speculative_method": "mtp"}
FLAG = ["maybe", 2, None, [], 0.5]

BAD = {
    "engine": ["vlm", None, 3],
    "vllm_engine_args": ["{", "[1]", "3", 3, None, '{"a":' * 100_000],
    "vllm_python": [3, []],
    "model": [None, 3, []],
    "draft_model": [3, []],
    "tensor_parallel_size": COUNT,
    "draft_tensor_parallel_size": COUNT,
    "devices": [None, 3, True],
    "draft_devices": [3, True],
    "dtype": ["int8", "fp32", None, 16],
    "num_threads": OPTIONAL_COUNT,
    "seed": [-1, 0.5, 1 << 63, *NUMBER_WORDS],
    "max_model_len": [1, *OPTIONAL_COUNT],
    "max_num_seqs": COUNT,
    "max_num_batched_tokens": [15, *COUNT],
    "max_queue_size": COUNT,
    "queue_timeout": [0, -1, 1e7, *NUMBER_WORDS],
    "max_prompt_bytes": [0, "0", "-1MiB", "lots", "5 parsecs", -5, None, True, NAN],
    "step_timeout": [0, -1, 1e7, None, *NUMBER_WORDS],
    "start_timeout": [0, -1, 1e7, None, *NUMBER_WORDS],
    "drain_timeout": [-1, 1e7, None, *NUMBER_WORDS],
    "kv_cache_memory": [0, "0", "-1GiB", "lots", "5 parsecs", -5, True, NAN],
    "gpu_memory_utilization": [0, -0.5, 1.01, None, *NUMBER_WORDS],
    "block_size": [257, *COUNT],
    "enable_prefix_caching": FLAG,
    "speculative_method": ["guess", "", 3, "ngram,", "ngram,none", "eagle,mtp", "suffix,suffix"],
    "num_speculative_tokens": [65, *COUNT],
    "speculative_tree": [
        *(0, 33, "x", "[", "[1]", [[]], [[0, 0]], [[-1]], [[0], [0, 32]], True, 1.5),
        *("[" * 100_000, "[[[1], 2]]", [[{}]], [[0], *[[0, rank] for rank in range(32)] * 2]),
    ],
    "draft_max_model_len": OPTIONAL_COUNT,
    "draft_weight_bits": [4, 0, 32, "x", "", True, None, 8.5],
    "prompt_lookup_min": COUNT,
    "prompt_lookup_max": [33, *COUNT],
    "suffix_decoding_max_tree_depth": [1, *COUNT],
    "suffix_decoding_max_cached_requests": [-1, 1.5, None, *NUMBER_WORDS],
    "suffix_decoding_max_spec_factor": [0, -1, 17, None, *NUMBER_WORDS],
    "suffix_decoding_min_token_prob": [-0.1, 1.1, None, *NUMBER_WORDS],
    "adaptive_speculation": FLAG,
    "speculative_disable_by_batch_size": OPTIONAL_COUNT,
    "speculative_token_budget": OPTIONAL_COUNT,
    "acceptance_method": ["always", None, True],
    "log_level": ["loud", None, 3],
    "log_prompts": FLAG,
}


def flat(table: dict[str, list]) -> list[tuple]:
    return [(key, value) for key, values in table.items() for value in values]


def test_the_table_covers_every_parameter():
    assert set(BAD) == set(EngineConfig.model_fields)


@pytest.mark.parametrize(("key", "value"), flat(BAD))
def test_a_bad_value_is_refused_in_one_sentence_that_names_the_key(key, value):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{"model": "folder"} | {key: value})
    text = str(caught.value)
    assert text.startswith(f"The parameter {key!r} is ")
    assert text.endswith(".")
    assert "\n" not in text
    assert "but it " in text


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("num_draft_model", "use draft_model"),
        ("speculative_model", "use draft_model"),
        ("ngram_prompt_lookup_max", "use prompt_lookup_max"),
        ("gpu_memory_utilisation", "use gpu_memory_utilization"),
        *((key, "remove it or correct its name") for key in ("self", "temperature")),
    ],
)
def test_an_unknown_parameter_is_named(key, remedy):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{"model": "folder", key: 1})
    assert str(caught.value) == f"Unknown parameter {key!r}: {remedy}."


def test_other_names_are_of_parameters_that_there_are():
    for other, ours in OTHER_NAMES.items():
        assert other not in EngineConfig.model_fields
        assert ours in EngineConfig.model_fields or other == "speculative_config"


@pytest.mark.parametrize("key", ["model", "draft_model", "vllm_python"])
@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_what_is_no_path_is_refused(key, path):
    values = {"model": "folder", key: path}
    with pytest.raises(ConfigError, match=rf"^The parameter '{key}' is '.*', but that is no path"):
        EngineConfig.from_triton_parameters(values, Path("/models"))


@pytest.mark.parametrize(
    "values",
    [
        {"x" * 5000: "1"},
        {"max_prompt_bytes": "1" + "x" * 5000},
        {"speculative_tree": [[0] * 5000]},
    ],
)
def test_a_sentence_quotes_no_more_than_somebody_reads(values):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model="folder", **values)
    assert len(str(caught.value)) < 600 and "..." in str(caught.value)


def test_a_missing_model_is_named():
    with pytest.raises(ConfigError, match=r"^The parameter 'model' is missing: set it\.$"):
        EngineConfig()


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 3}, ["prompt_lookup_min", "4", "3"]),
        ({"max_num_seqs": 65, "max_num_batched_tokens": 64}, ["max_num_seqs", "65", "64"]),
        ({"speculative_method": "draft_model"}, ["speculative_method", "draft_model is not set"]),
        ({"draft_model": "[ngram]"}, ["draft_model is [ngram]", "speculative_method to ngram"]),
    ],
)
def test_contradictions_name_both_values(values, names):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model="folder", **values)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(
    ("values", "method", "lookahead"),
    [
        ({}, "none", 0),
        ({"draft_model": "d"}, "draft_model", 4),
        ({"draft_model": "d", "speculative_method": "none"}, "none", 0),
        ({"draft_model": "d", "speculative_tree": SHAPE}, "draft_model", 3),
        ({"speculative_tree": SHAPE, "num_speculative_tokens": 2} | MTP, "mtp", 2),
        ({"speculative_tree": SHAPE, "num_speculative_tokens": 8} | MTP, "mtp", 3),
        ({"draft_model": "d", "speculative_tree": [*SHAPE, [0, 1], [0, 2]]}, "draft_model", 5),
        ({"speculative_method": "ngram", "num_speculative_tokens": 7}, "ngram", 7),
        ({"speculative_method": "suffix, mtp"}, "mtp", 4),
        ({"speculative_method": "suffix,ngram"}, "suffix", 4),
    ],
)
def test_the_method_follows_from_what_is_given(values, method, lookahead):
    config = EngineConfig(model="folder", **values)
    assert (config.method, config.lookahead) == (method, lookahead)


def test_a_configuration_crosses_a_process_border():
    config = EngineConfig(model="folder", kv_cache_memory="3MiB", seed=5)
    assert pickle.loads(pickle.dumps(config)) == config


# -- config.pbtxt ------------------------------------------------------------------------------

BASE = Path("/models/tandem/1")


def read(**parameters: str) -> EngineConfig:
    return EngineConfig.from_triton_parameters(parameters, BASE)


def test_strings_become_values():
    config = read(
        model="/weights/target",
        num_speculative_tokens=" 6 ",
        kv_cache_memory="1.5GiB",
        enable_prefix_caching="false",
        gpu_memory_utilization="0.5",
        dtype="bfloat16",
    )
    assert config.num_speculative_tokens == 6
    assert config.kv_cache_memory == 3 << 29
    assert config.enable_prefix_caching is False
    assert config.gpu_memory_utilization == 0.5
    assert config.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("target", "/models/tandem/1/target"),
        ("../weights", "/models/tandem/weights"),
        ("/weights", "/weights"),
    ],
)
def test_relative_folders_start_at_the_version_folder(given, expected):
    config = read(model=given, draft_model=given)
    assert config.model == config.draft_model == Path(expected)


@pytest.mark.parametrize("empty", ["", "  "])
def test_empty_values_are_unset(empty):
    config = read(model="target", draft_model=empty, max_model_len=empty, max_num_seqs=empty)
    assert config == EngineConfig(model=BASE / "target")
    with pytest.raises(ConfigError, match="'model' is missing"):
        read(model=empty)


def test_bad_strings_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"'max_num_seqs' is 'four', but it must be a valid int"):
        read(model="target", max_num_seqs="four")


@pytest.mark.parametrize(
    "values",
    [
        {"vllm_engine_args": '{"max_num_seqs": 8}'},
        {"vllm_python": "/usr/bin/python3"},
    ],
    ids=str,
)
def test_what_only_the_vllm_engine_does_is_refused_by_name(values):
    with pytest.raises(ConfigError, match=rf"{next(iter(values))}.* native"):
        EngineConfig(model="target", **values)


@pytest.mark.parametrize(
    "values",
    [
        {"draft_devices": "cpu"},
        {"acceptance_method": "coupled"},
        {"acceptance_method": "block"},
        {"speculative_method": "ngram,draft_model"},
        {"speculative_method": "mlp_speculator"},
        {"speculative_tree": 2},
        {"speculative_token_budget": 16},
        {"draft_max_model_len": 64, "speculative_method": "ngram"},
        {"draft_tensor_parallel_size": 2},
        {"draft_tensor_parallel_size": 1, "tensor_parallel_size": 2, "speculative_method": "eagle"},
    ],
    ids=str,
)
def test_what_the_vllm_engine_does_not_do_is_refused_by_name(values):
    with pytest.raises(ConfigError, match=rf"{next(iter(values))} .* engine.* vllm"):
        EngineConfig(engine="vllm", model="target", draft_model="draft", **values)


def test_vllms_interpreter_is_looked_for_before_anything_starts(tmp_path):
    config = EngineConfig(engine="vllm", model="target", vllm_python=tmp_path / "python3")
    with pytest.raises(ConfigError, match=r"no interpreter .*python3.* make setup-vllm"):
        interpreter(config)
