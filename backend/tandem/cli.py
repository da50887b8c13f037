"""The `tandem` command: serve a model, check an installation, generate without a server.

What a command needs is imported when it runs, so that `tandem --help` is quick.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tandem.errors import TandemError
from tandem.front import MOST_BYTES, MOST_CALLS

app = typer.Typer(
    name="tandem",
    help="Speculative decoding served by Triton Inference Server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_INTERRUPTED = 130

Repository = Annotated[Path, typer.Option(help="Folder with one folder a model.")]
Models = Annotated[list[str], typer.Option("--model", help="Model to load; may be repeated.")]
Triton = Annotated[
    Path | None, typer.Option(help="The tritonserver binary; found by itself when not given.")
]
Log = Annotated[
    Path | None,
    typer.Option(help="File that Triton's log is appended to; a temporary one when not given."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the engine; repeatable."),
]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for other machines too.")]


MostCalls = Annotated[int, typer.Option(min=1, help="Requests at a time; more are refused.")]
MostBytes = Annotated[int, typer.Option(min=1, help="Of a request; larger ones are refused.")]
Behind = Annotated[str, typer.Option(metavar="HOST:PORT", help="Not served when not given.")]


def _port(what: str, least: int = 0) -> Any:
    free = "" if least else "; 0 takes a free port"
    return typer.Option(min=least, max=65535, help=f"{what}{free}.")


@app.command()
def serve(
    model: Models = ["tandem"],  # noqa: B006  typer wants a list and copies it
    model_repository: Repository = Path("model_repository"),
    host: Host = "127.0.0.1",
    http_port: Annotated[int, _port("HTTP")] = 8000,
    grpc_port: Annotated[int, _port("gRPC")] = 8001,
    metrics_port: Annotated[int, _port("Metrics")] = 8002,
    front: Annotated[
        bool, typer.Option(help="Whether clients come to a front that lets nothing harmful in.")
    ] = True,
    control_port: Annotated[
        int, _port("Triton's own HTTP behind the front, for this machine alone")
    ] = 0,
    most_calls: MostCalls = MOST_CALLS,
    most_bytes: MostBytes = MOST_BYTES,
    set_: Settings = None,
    triton: Triton = None,
    log: Log = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Triton's log.")] = False,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARGUMENT...]", help="Further ones of tritonserver, as they are."
        ),
    ] = None,
) -> None:
    """Serve models in the foreground until Ctrl-C."""
    from tandem.front.door import Door
    from tandem.serving.foreground import serve as serve_in_foreground
    from tandem.serving.options import ServerOptions
    from tandem.serving.overrides import overridden
    from tandem.serving.ports import Ports

    with overridden(model_repository, model, settings(set_)) as repository:
        ports = Ports(http_port, grpc_port, metrics_port)
        if front and control_port and control_port in ports:
            raise typer.BadParameter("It is a port of the front.", param_hint="--control-port")
        door = Door(host, ports, most_calls, most_bytes) if front else None
        options = ServerOptions(
            model_repository=repository,
            models=tuple(model),
            host="127.0.0.1" if front else host,
            ports=Ports(control_port, 0, 0) if front else ports,
            triton=triton,
            log_path=log,
            arguments=tuple(arguments or ()),
        )
        serve_in_foreground(options, door, Console(), verbose)


@app.command()
def front(
    triton_http: Behind = "",
    triton_grpc: Behind = "",
    triton_metrics: Behind = "",
    host: Host = "127.0.0.1",
    http_port: Annotated[int, _port("HTTP", 1)] = 8080,
    grpc_port: Annotated[int, _port("gRPC", 1)] = 8081,
    metrics_port: Annotated[int, _port("Metrics", 1)] = 8082,
    most_calls: MostCalls = MOST_CALLS,
    most_bytes: MostBytes = MOST_BYTES,
) -> None:
    """Stand before a Triton that something else has started, and let clients in to models and their
    answers alone. (`tandem serve` has a front by itself.)"""
    import uvloop

    from tandem.front.door import Door
    from tandem.front.run import serve as serve_front
    from tandem.serving.ports import Ports
    from tandem.serving.server import Endpoints

    triton = Endpoints(triton_http, triton_grpc, triton_metrics)
    ports = Ports(http_port, grpc_port, metrics_port)
    uvloop.run(serve_front(triton, Door(host, ports, most_calls, most_bytes)))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def demo(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Model to load.")] = "tandem",
    model_repository: Repository = Path("model_repository"),
    set_: Settings = None,
    triton: Triton = None,
) -> None:
    """Start a server on free ports and show speculative decoding at work.

    Further options go to the demo: python -m tandem_client.demo --help.
    """
    from tandem.serving.foreground import demo as run_demo
    from tandem.serving.options import ServerOptions
    from tandem.serving.overrides import overridden

    # it asks for one completion again and again: no suffix of the last ones is to be found
    forgetful = {"suffix_decoding_max_cached_requests": "0"}
    with overridden(model_repository, [model], forgetful | settings(set_)) as repository:
        options = ServerOptions(repository, (model,), triton=triton)
        code = run_demo(options, context.args, Console())
    raise typer.Exit(code)


@app.command()
def doctor(
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Model to check; all when not given.")
    ] = None,
    model_repository: Repository = Path("model_repository"),
    set_: Settings = None,
    triton: Triton = None,
) -> None:
    """Check the machine, the installation and the models, and say what to do."""
    from tandem.doctor import examine, report

    findings = examine(model_repository, model, triton, settings(set_))
    raise typer.Exit(1 if report(findings, Console()) else 0)


@app.command()
def ranks(
    model: Annotated[str, typer.Option(help="Model to look at.")] = "tandem",
    model_repository: Repository = Path("model_repository"),
    set_: Settings = None,
) -> None:
    """Show what each tensor-parallel rank holds and how often ranks must talk."""
    from tandem.ranks import show

    show(model_repository / model, settings(set_), Console())


@app.command()
def generate(
    prompts: Annotated[list[str], typer.Argument(help="Prompts; - reads one from stdin.")],
    model: Annotated[Path, typer.Option(help="Folder of the target checkpoint.")],
    draft_model: Annotated[
        Path | None, typer.Option(help="Folder of the draft checkpoint.")
    ] = None,
    set_: Settings = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option(help="Longest draft of a round; 0: no speculation.")
    ] = None,
) -> None:
    """Stream completions from an engine, without a server."""
    from tandem.generate import run

    parameters = settings(set_) | {"model": str(model.resolve())}
    if draft_model:
        parameters["draft_model"] = str(draft_model.resolve())
    sampling = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "num_draft_tokens": num_draft_tokens,
    }
    stdin = typer.get_text_stream("stdin", encoding="utf-8", errors="surrogateescape")
    texts = [stdin.read() if prompt == "-" else prompt for prompt in prompts]
    run(texts, parameters, sampling)


@app.command()
def fit_tree(
    prompts: Annotated[Path, typer.Argument(help="JSON file with a list of prompts.")],
    model: Annotated[str, typer.Option(help="Model whose guesses are measured.")] = "tandem",
    model_repository: Repository = Path("model_repository"),
    set_: Settings = None,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Nodes of the tree.")] = 16,
    depth: Annotated[int, typer.Option(min=1, max=16, help="Longest path.")] = 5,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens measured a prompt.")] = 128,
) -> None:
    """Fit speculative_tree to how often a model's guesses are right on your prompts."""
    from tandem.fit_tree import run as run_fit

    folder = model_repository / model
    run_fit(folder, settings(set_), prompts, nodes, depth, max_tokens)


def settings(items: list[str] | None) -> dict[str, str]:
    settings = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"'{item}' is not KEY=VALUE.", param_hint="--set")
        settings[key.strip()] = value
    return settings


def main() -> None:
    """The entry point: an error is one sentence and exit code 1."""
    try:
        app()
    except TandemError as error:
        Console(stderr=True).print(f"tandem: {error}", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
