"""Coverage-guided fuzzing of what comes from outside: requests, and parameters of config.pbtxt.

`make fuzz` runs it for a minute. It looks for inputs that reach new lines of Tandem, and ends at
the first that breaks what `tests/engine/surface.py` asks: it prints the input and keeps it in a
file, which as an argument is tried again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import atheris
import numpy as np
import typer

with atheris.instrument_imports(include=["tandem"]):
    from tandem import EngineConfig, SamplingParams
    from tests.engine import surface
    from tests.engine.fake_pb_utils import Request, Sender, TritonError

FINDINGS = Path("build/fuzz")
LONGEST_INPUT = 4096  # bytes
SLOW_S = 5  # an input that takes longer is a finding
WORDS = ["Infinity", "NaN", "\\ud800", "[[0],[0,0]]", "{}", "null", "1e999", "../", "MiB", "vllm"]
SEEDS = [
    b"\0{}",
    b'\1{"max_tokens": 8, "temperature": 0.5, "stop": ["a"], "logit_bias": {"1": 2}}',
    b'\2{"max_tokens": "8", "seed": 1, "priority": -1}',
    b"\3speculative_tree\0[[0], [1], [0, 0]]\0draft_model\0draft",
    b"\4................" + b'{"n": 1, "logprobs": 2}',
    b"\3num_speculative_tokens\0" + b"8\0kv_cache_memory\0512MiB\0speculative_method\0ngram",
]


def as_prompt(rest: bytes) -> None:
    _execute(Request({"text_input": rest}, own_id=rest[:80]))


def as_tensors(rest: bytes) -> None:
    """The JSON beside every other input that a client can send."""
    data = atheris.FuzzedDataProvider(rest[:16])
    inputs: dict[str, Any] = {
        name: data.ConsumeBool()
        for name in (*surface.FLAGS, "stream", "exclude_input_in_output")
        if data.ConsumeBool()
    }
    if data.ConsumeBool():
        inputs["num_draft_tokens"] = np.array(data.ConsumeIntList(1, 4), np.int32)
    if data.ConsumeBool():
        inputs["input_ids"] = np.array(data.ConsumeIntList(2, 4), np.int32)
    else:
        inputs["text_input"] = b"t1"
    _execute(
        Request(inputs | {"sampling_parameters": rest[16:]}, own_timeout=data.ConsumeInt(1) & 1)
    )


def as_sampling_parameters(rest: bytes) -> None:
    _execute(Request({"text_input": b"t1", "sampling_parameters": rest}))


def as_parameters(rest: bytes) -> None:
    """Triton writes an object; what is none is its own mistake, and does no harm either."""
    _execute(Request({"text_input": b"t1"}, own_parameters=rest), TritonError.INTERNAL)


def as_config(rest: bytes) -> None:
    """Names and values by turns, zero bytes between them; a one within them is a zero."""
    words = rest.decode(errors="surrogateescape").split("\0")
    words = [word.replace("\1", "\0") for word in words]
    surface.check_config({"model": "target"} | dict(zip(words[::2], words[1::2], strict=False)))


SURFACES: list[Callable[[bytes], None]] = [
    as_prompt,
    as_sampling_parameters,
    as_parameters,
    as_config,
    as_tensors,
]


def _execute(request: Request, *more: int) -> None:
    request.sender = Sender(cancelled=len(request.own_id) % 2 == 1)
    surface.check_request(surface.StandIn(), request, {TritonError.INVALID_ARG, *more})


def one_input(data: bytes) -> None:
    """The first byte says what the others are."""
    try:
        if data:
            SURFACES[data[0] % len(SURFACES)](data[1:])
    except BaseException:
        print(f"\nThis input breaks {SURFACES[data[0] % len(SURFACES)].__name__}: {data[1:]!r}")
        raise


def main(
    seconds: Annotated[int, typer.Option(help="How long to look.", min=1)] = 60,
    again: Annotated[Path | None, typer.Argument(help="A finding to try again.")] = None,
) -> None:
    """Looks for inputs that break the model; ends with an error at the first."""
    FINDINGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [*SamplingParams.model_fields, *EngineConfig.model_fields, *WORDS]
        quoted = (word.replace("\\", "\\\\") for word in words)
        (folder / "words").write_text("".join(f'"{word}"\n' for word in quoted))
        (folder / "corpus").mkdir()
        for number, seed in enumerate(SEEDS):
            (folder / "corpus" / str(number)).write_bytes(seed)
        options = {
            "max_total_time": seconds,
            "max_len": LONGEST_INPUT,
            "len_control": 10,  # try long inputs soon: Tandem's own lines are few
            "timeout": SLOW_S,
            "dict": folder / "words",
            "artifact_prefix": f"{FINDINGS}/",
            "print_final_stats": 1,
        }
        arguments = ["fuzz", *(f"-{key}={value}" for key, value in options.items())]
        atheris.Setup([*arguments, str(again or folder / "corpus")], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    typer.run(main)
