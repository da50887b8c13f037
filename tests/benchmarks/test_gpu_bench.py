"""The GPU's benchmark, tried on a CPU: what it measures is what it says."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from tools import gpu_bench
from tools.gpu_bench import DRAFTED, main

SURE = 5  # tokens: of random weights in bfloat16 two engines need not agree for ever


def run(*arguments):
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    result = run("--out", str(tmp_path / "gpu.json"))
    assert result.exit_code == 1
    assert "no GPU" in result.output
    assert not (tmp_path / "gpu.json").exists()


def test_a_small_one_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_bench, "CONTEXT", 128)
    monkeypatch.setattr(gpu_bench, "LONG_CONTEXT", 256)
    out = tmp_path / "gpu.json"
    result = run("--shape", "tiny", "--device", "cpu", "--new-tokens", "12", "--out", str(out))
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert all(case["greatest_difference"] == 0 for name, case in cases(found["kernels"]))
    assert found["passes"]["of_read_bandwidth"] > 0
    ours, theirs = (
        [case["first_tokens"] for _, case in cases(found[part])] for part in ("ours", "huggingface")
    )
    assert len(ours + theirs) == 2 + 3 * len(DRAFTED)
    assert all(text == ours[0] for text in ours)
    assert all(text == theirs[0] for text in theirs)
    assert ours[0][:SURE] == theirs[0][:SURE]
    drafted = [case for name, case in cases(found["ours"]) if name != "plain"]
    assert all(case["acceptance_rate"] > 0.9 for case in drafted)


def test_a_part_that_fails_is_told_and_the_others_are_measured(tmp_path, monkeypatch):
    def breaks(bench):
        yield "first", 1
        raise RuntimeError("CUDA error: no more.\nCompile with ...")

    def holds(bench):
        yield "second", 2

    monkeypatch.setattr(gpu_bench, "PARTS", (breaks, holds))
    out = tmp_path / "gpu.json"
    assert run("--shape", "tiny", "--device", "cpu", "--out", str(out)).exit_code == 0
    found = json.loads(out.read_text())
    assert found["breaks"]["first"] == 1
    assert found["breaks"]["error"] == "RuntimeError: CUDA error: no more."
    assert found["holds"]["second"] == 2


def test_what_has_no_time_left_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_bench, "BEGUN_WITHIN_S", 0.0)
    out = tmp_path / "gpu.json"
    assert run("--shape", "tiny", "--device", "cpu", "--out", str(out)).exit_code == 0
    found = json.loads(out.read_text())
    for part in gpu_bench.PARTS:
        assert found[part.__name__] == {"error": "no time was left for it: 0 s had passed"}


def cases(part):
    return [(name, case) for name, case in part.items() if name != "seconds"]
