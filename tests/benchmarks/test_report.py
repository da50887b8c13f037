"""BENCHMARKS.md from results: every section has its figures, or says that they are missing."""

import json

import pytest

from benchmarks import common, mixtures, plots, report
from benchmarks.adaptive import TITLES
from benchmarks.steps import ROWS

MACHINE = {
    "cpu": "a CPU",
    "instructions": "AVX2",
    "threads": 2,
    "read_gb_per_s": 30.0,
    "python": "3.11",
    "torch": "2.13",
}
SPEED = {"tokens_per_second": 150.0, "acceptance_rate": 0.5, "by_repeat": [1.0]}
RATIO = [0.99, 0.97, 1.01]
ALONE = SPEED | {"same_texts": "5 of 5", "first_token_ms": 15.5}
KIND = {
    "Tandem, plain": ALONE | {"decoding_tokens_per_second": 160.0},
    "Another": ALONE | {"tokens_per_second": 75.0, "decoding_tokens_per_second": 120.0},
}
METHOD = {"mean_acceptance_length": 3.25, "batch 1": SPEED, "batch 8": SPEED}
SWEEP = {"seconds": 12.0} | {
    case: dict.fromkeys(("1", "2"), dict.fromkeys(TITLES, SPEED | {"of_the_best_other": RATIO}))
    for case in ("easy", "mixed", "hopeless")
}
RESULTS = {
    "compare": {
        "targets": {
            "demo": {
                "machine": MACHINE,
                "weights_bytes": 51e6,
                "versions": {"Tandem": "0.1"},
                "heldout": KIND,
                "repetitive": KIND,
            }
        }
    },
    "throughput": {"tokens/s": {"1": {"Tandem, plain": 151.0}, "4": {"Tandem, plain": 401.0}}},
    "steps": {
        "passes": {
            "demo": {
                "milliseconds": {str(rows): 2.5 * rows for rows in ROWS},
                "gb_per_s": 20.5,
                "of_read_bandwidth": 0.71,
            }
        },
        "host": {"none, batch 1": {"step_ms": 3.5, "host_share": 0.062}},
    },
    "adaptive": SWEEP,
    "adaptive-200": json.loads(json.dumps(SWEEP | {"seconds": 11.0}).replace("150", "250")),
    "mixtures": {
        "seconds": 13.0,
        "heldout": {"8": dict.fromkeys(mixtures.TITLES, SPEED | {"of_the_best_other": RATIO})},
    },
    "methods": {"heldout": {"none": METHOD}, "repetitive": {"none": METHOD}},
    "serving": {"vLLM, plain, batch 1": {"in_process": 171.0, "triton": 158.0, "ratio": 0.92}},
    "gpu": {
        "device": "A card",
        "torch": "2.13",
        "triton": "3.5",
        "passes": {"8 nodes": {"by one": 1.05}},
        "ours": {"plain": {"first_tokens": [1, 2]}},
    },
}
SHOWN = {
    "compare": "| Another | 75 | 0.50× | 0.75× | 75 | 0.50× | 0.75× | 15.5 | 5 of 5 |",
    "throughput": "| Tandem, plain | 151 | 401 |",
    "steps": "| 16.00× | 20.5 | 71% |",
    "adaptive": "| 2 | 150 | 150 | 150 | 150 | 150 | 150 | 0.99× (0.97 to 1.01) |",
    "adaptive-200": "| mean | 250 | 250 | 250 | 250 | 250 | 250 |  |",
    "mixtures": "eagle3, up to 16, by the best of its parts and plain | 0.99× (0.97 to 1.01) |",
    "methods": "| none | 3.25 | 1.00× | 1.00× | 3.25 | 1.00× | 1.00× |",
    "serving": "| vLLM, plain, batch 1 | 171 | 158 | 92% |",
    "gpu": "| passes: 8 nodes: by one | 1.05 |",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    for module in (report, plots):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(report, "OUT", tmp_path / "BENCHMARKS.md")
    monkeypatch.setattr(plots, "FOLDER", tmp_path / "plots")
    return tmp_path


def test_every_section_shows_its_figures(folder):
    for name, result in RESULTS.items():
        (folder / f"{name}.json").write_text(json.dumps({"machine": MACHINE, **result}))
    report.main()
    text = (folder / "BENCHMARKS.md").read_text()
    assert all(line in text for line in SHOWN.values())
    assert report.MISSING not in text
    assert "Medians of 1 rounds." in text
    assert "`draft_weight_bits` was 16. At least 11 s" in text  # as it was before it was said
    assert all(f"{seconds} s of each figure." in text for seconds in (11, 12, 13))
    for name in ("compare", "adaptive", "adaptive-200"):
        assert f"](plots/{name}.svg)" in text
        assert (folder / "plots" / f"{name}.svg").stat().st_size > 1000


def test_with_which_drafts_it_was_measured_is_said(folder, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", folder)
    monkeypatch.setattr(common, "ROOT", folder)
    common.save("adaptive", {"machine": MACHINE, **RESULTS["adaptive"]})
    report.main()
    assert "`draft_weight_bits` was 8. At least" in (folder / "BENCHMARKS.md").read_text()


def test_what_was_not_measured_is_said(folder):
    report.main()
    text = (folder / "BENCHMARKS.md").read_text()
    assert text.count(report.MISSING) == len(RESULTS) - 1
    assert report.NO_GPU in text


def test_mixtures_are_compared_with_their_own_parts_and_none():
    parts = {one.methods: one.parts() for one in mixtures.MIXTURES}
    drafts = ["draft_model, k = 4", "draft_model, k = 8"]
    assert parts == {
        "ngram,draft_model": ["plain", "ngram, k = 8", *drafts],
        "suffix,draft_model": ["plain", "suffix, k = 16", *drafts],
        "suffix,eagle3": ["plain", "suffix, k = 16", "eagle3, k = 4"],
    }
