"""The `tandem-client` command: a completion in the terminal, and whether the model is ready."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from tandem_client import errors
from tandem_client.base import ChunkStream, Client
from tandem_client.collect import Collector
from tandem_client.grpc_client import GrpcClient
from tandem_client.http_client import HttpClient
from tandem_client.params import GenerationParams
from tandem_client.types import Completion

app = typer.Typer(
    help="Talk to a Tandem model on Triton Inference Server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_FAILED, _BAD_REQUEST, _UNAVAILABLE, _INTERRUPTED = 1, 2, 3, 130


class Protocol(StrEnum):
    """How to talk to the server."""

    grpc = "grpc"
    http = "http"


Url = Annotated[
    str | None, typer.Option(help="HOST:PORT; by default localhost:8001, over HTTP 8000.")
]
Protocols = Annotated[Protocol, typer.Option(help="How to talk to the server.")]
Model = Annotated[str, typer.Option(help="Name of the model on the server.")]


def _connect(url: str | None, protocol: Protocol, model: str) -> Client:
    if protocol is Protocol.grpc:
        return GrpcClient(url or "localhost:8001", model)
    return HttpClient(url or "localhost:8000", model)


def _exit_code(error: errors.TandemError) -> int:
    if isinstance(error, errors.InvalidArgument | errors.NotFound):
        return _BAD_REQUEST
    return _UNAVAILABLE if error.retriable else _FAILED


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn an error into one line on stderr and an exit code."""
    try:
        yield
    except errors.TandemError as error:
        print(f"tandem-client: {error}", file=sys.stderr)
        raise typer.Exit(_exit_code(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    url: Url = None,
    protocol: Protocols = Protocol.grpc,
    model: Model = "tandem",
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop text; may be repeated.")] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option(help="Longest draft of a round; 0: no speculation.")
    ] = None,
    speculative_method: Annotated[
        str | None, typer.Option(help="The one of the model's methods that drafts; none: none.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Lower ones are served first.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for the whole request.")] = None,
    request_id: Annotated[
        str | None, typer.Option(help="Begins the request's name in the server's log.")
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print speed and speculation to stderr.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Stream a completion to the terminal."""
    params = GenerationParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=stop or None,
        num_draft_tokens=num_draft_tokens,
        speculative_method=speculative_method,
        priority=priority,
    )
    # Bytes that are no UTF-8 come through, as in an argument; the client refuses them.
    stdin = typer.get_text_stream("stdin", encoding="utf-8", errors="surrogateescape")
    text = stdin.read() if prompt == "-" else prompt
    with _one_sentence(), _connect(url, protocol, model) as client:
        stream = client.stream(text, params, timeout=timeout, request_id=request_id)
        completion = _run(stream, echo=not as_json)
    if as_json:
        print(json.dumps(_as_dict(completion), ensure_ascii=False))
    if stats:
        console = Console(stderr=True, highlight=False)
        console.print(_summary(completion), style="dim", soft_wrap=True, markup=False)


@app.command()
def ready(url: Url = None, protocol: Protocols = Protocol.grpc, model: Model = "tandem") -> None:
    """Say whether the model can answer; the exit code says it too."""
    with _one_sentence(), _connect(url, protocol, model) as client:
        is_ready = client.is_ready()
    print(f"{model} is {'ready' if is_ready else 'not ready'}")
    raise typer.Exit(0 if is_ready else _UNAVAILABLE)


def _run(stream: ChunkStream, echo: bool) -> Completion:
    collector = Collector()
    try:
        with stream as chunks:
            for chunk in chunks:
                collector.add(chunk)
                if echo:
                    print(chunk.text, end="", flush=True)
    finally:
        if echo and collector.started:
            print(flush=True)  # before what is said on stderr, in a pipe too
    return collector.completion()


def _as_dict(completion: Completion) -> dict[str, Any]:
    """The completion as JSON has it, with names instead of tuples."""
    answer = asdict(completion)
    answer["timing"] = completion.timing._asdict()
    if completion.stats:
        mean = completion.stats.mean_acceptance_length
        answer["stats"] = completion.stats._asdict() | {"mean_acceptance_length": mean}
    return answer


def _summary(completion: Completion) -> str:
    timing, stats = completion.timing, completion.stats
    line = (
        f"{completion.num_tokens} tokens, {timing.tokens_per_second:.1f} tokens/s, "
        f"first after {timing.time_to_first_token * 1000:.0f} ms, {completion.finish_reason}"
    )
    if completion.request_id:
        line = f"{completion.request_id}: {line}"
    if stats and stats.drafted:
        line += (
            f"; accepted {stats.accepted} of {stats.drafted} drafted "
            f"({stats.acceptance_rate:.0%}), {stats.mean_acceptance_length:.2f} tokens a round"
        )
    return line


if __name__ == "__main__":
    app()
