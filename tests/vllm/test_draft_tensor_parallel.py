"""vLLM with a draft tensor-parallel size of its own, on CPUs: exact, and refused without us."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.engine_process import VLLM_SOCKETS
from tandem.leftovers import SCRATCH, clear_shared

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PAIR = ROOT / "model_repository" / "tandem" / "1"
K = 4


INHERITED = dict(os.environ)  # once: pytest changes it while tests run


def run(t=1, d=None, draft=None, plugins="tandem_draft_tensor_parallel"):
    """The finished process of one vLLM engine."""
    arguments = {"model": str(PAIR / "target"), "tensor_parallel_size": t}
    if draft is not None:
        arguments["speculative_config"] = {
            "method": "draft_model",
            "model": str(draft),
            "num_speculative_tokens": K,
            "draft_tensor_parallel_size": d,
        }
    cores = sorted(os.sched_getaffinity(0))
    environment = INHERITED | {
        "VLLM_PLUGINS": f"{plugins},tandem_endings,tandem_starts",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cores[i % len(cores)]) for i in range(t)),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    script = Path(__file__).with_name("generate.py")
    command = [ROOT / ".venv-vllm/bin/python", script, json.dumps(arguments)]
    with TemporaryDirectory() as folder:
        environment |= {VLLM_SOCKETS: folder, SCRATCH: folder}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True)
        clear_shared(Path(folder))
    return finished


def result(process):
    """What it printed."""
    lines = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, process.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


def acceptance(counters):
    return counters["accepted_tokens"] / counters["draft_tokens"]


@pytest.fixture(scope="module")
def random_draft(tmp_path_factory):
    """The draft's shape and tokenizer with weights that mean nothing."""
    folder = tmp_path_factory.mktemp("random") / "draft"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(PAIR / "draft")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder)
    for file in (PAIR / "draft").glob("token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(scope="module")
def runs(random_draft):
    """The processes by name, two at a time: most of each one's minute is starting, on one core."""
    draft = PAIR / "draft"
    arguments = {
        "alone": (),
        "2, 1": (2, 1, draft),
        "4, 2": (4, 2, draft),
        "equal": (2, 1, PAIR / "target"),
        "random": (2, 1, random_draft),
        "no plug-in": (2, 1, draft, "none"),
        "4, 3": (4, 3, draft),
    }
    with ThreadPoolExecutor(2) as pool:
        started = {name: pool.submit(run, *one) for name, one in arguments.items()}
        yield lambda name: started[name].result()


@pytest.fixture(scope="module")
def alone(runs):
    """Tokens without speculation, on one rank."""
    return result(runs("alone"))["tokens"]


@pytest.mark.parametrize("sizes", ["2, 1", "4, 2"])
def test_the_text_is_that_of_no_speculation(runs, alone, sizes):
    found = result(runs(sizes))
    assert found["tokens"] == alone
    assert acceptance(found["counters"]) > 0.4


def test_a_draft_equal_to_the_target_is_accepted(runs, alone):
    found = result(runs("equal"))
    assert found["tokens"] == alone
    assert acceptance(found["counters"]) >= 0.99


def test_a_random_draft_is_rejected_and_harmless(runs, alone):
    found = result(runs("random"))
    assert found["tokens"] == alone
    assert acceptance(found["counters"]) <= 0.02


def test_without_the_plug_in_vllm_refuses(runs):
    process = runs("no plug-in")
    assert process.returncode
    assert "'draft_tensor_parallel_size' and 'tensor_parallel_size' must be the same" in (
        process.stdout + process.stderr
    )


def test_a_size_that_does_not_divide_is_refused(runs):
    process = runs("4, 3")
    assert process.returncode
    assert "draft_tensor_parallel_size is 3 but tensor_parallel_size is 4" in process.stderr
