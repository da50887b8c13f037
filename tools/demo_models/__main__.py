"""Makes the demo pair. README.md tells the order of the stages and what they gave."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .corpus import read_corpus
from .draft import Recipe, distil
from .heads.lessons import write_lessons
from .heads.teach import METHODS, teach
from .models import deepened, load_model, load_tokenizer, parameter_count, save_model, target_config
from .prompts import cut_prompts
from .repetitive import repetitive_prompts
from .report import report_pair, show_completions
from .rollouts import PROMPT_TOKENS, make_rollouts, read_rollouts
from .target import refine_target, train_target

BYTES = 2  # of a weight in bf16
SHIPPED = Path(__file__).parents[2] / "model_repository" / "tandem" / "1"

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Out = Annotated[Path, typer.Option(help="where the result is written")]
Target = Annotated[Path, typer.Option(help="folder of the target")]
Draft = Annotated[Path, typer.Option(help="folder of the draft")]


@app.command("target")
def target_command(out: Out, minutes: float = 52.0, seed: int = 0) -> None:
    """Train the tokenizer and the target."""
    train_target(out, minutes * 60, seed)


@app.command("refine")
def refine_command(target: Target, out: Out, minutes: float = 75.0, seed: int = 1) -> None:
    """Train a target further."""
    refine_target(out, target, minutes * 60, seed)


@app.command("pad")
def pad_command(
    megabytes: Annotated[float, typer.Argument(help="size of the result's weights")],
    out: Out,
    target: Target = SHIPPED / "target",
) -> None:
    """Add identity layers: the same texts at the cost of a bigger model."""
    model = load_model(target)
    missing = megabytes * 1e6 / BYTES - parameter_count(model)
    layers = round(missing / sum(p.numel() for p in model.model.layers[0].parameters()))
    config = target_config(max(0, layers) + len(model.model.layers))
    save_model(deepened(model, config), load_tokenizer(target), out)


@app.command("rollouts")
def rollouts_command(target: Target, out: Out, minutes: float = 10.0, seed: int = 0) -> None:
    """Have the target continue prompts of training files."""
    typer.echo(f"{make_rollouts(target, out, minutes * 60, seed)} rows")


@app.command("draft")
def draft_command(
    target: Target,
    out: Out,
    rollouts: list[Path],
    layers: int = Recipe().layers,
    minutes: float = Recipe().budget_s / 60,
    corpus_share: float = Recipe().corpus_share,
    temperature: float = Recipe().temperature,
    start: Annotated[Path | None, typer.Option(help="a draft to train further")] = None,
    seed: int = 0,
) -> None:
    """Distil a draft from rollout files."""
    recipe = Recipe(layers, minutes * 60, corpus_share, temperature)
    distil(target, read_rollouts(rollouts), out, recipe, seed, start)


@app.command("lessons")
def lessons_command(target: Target, out: Out, rollouts: list[Path]) -> None:
    """Have the target read rollout files; heads learn from its hidden states."""
    write_lessons(target, read_rollouts(rollouts), out)


@app.command("head")
def head_command(
    method: Annotated[str, typer.Argument(help=", ".join(METHODS))],
    target: Target,
    lessons: Annotated[Path, typer.Option(help="what the command of that name wrote")],
    out: Out,
    minutes: float = 30.0,
    start: Annotated[Path | None, typer.Option(help="a head to train further")] = None,
    seed: int = 0,
) -> None:
    """Train one head."""
    if method not in METHODS:
        raise typer.BadParameter(f"{method}: choose one of {', '.join(METHODS)}")
    teach(method, target, lessons, out, minutes * 60, seed, start)


@app.command("report")
def report_command(
    target: Target = SHIPPED / "target",
    draft: Draft = SHIPPED / "draft",
    prompts: int = 128,
    seed: int = 3,
) -> None:
    """Print sizes, held-out losses and acceptance of a pair."""
    report_pair(target, draft, prompts, seed)


@app.command("complete")
def complete_command(
    target: Target = SHIPPED / "target", count: int = 6, temperature: float = 0.0, seed: int = 4
) -> None:
    """Print continuations of held-out prompts."""
    show_completions(target, count, temperature, seed)


@app.command("prompts")
def prompts_command(
    target: Target = SHIPPED / "target",
    count: int = 32,
    tokens: int = PROMPT_TOKENS,
    repetitive: bool = False,
    seed: int = 2,
) -> None:
    """Write prompts from held-out files to standard output, as a JSON list of strings."""
    tokenizer = load_tokenizer(target)
    documents = read_corpus().held_out
    if repetitive:
        rows = repetitive_prompts(target, tokenizer, documents, (count, tokens), seed)
    else:
        rows = cut_prompts(tokenizer, documents, count, tokens, seed)
    typer.echo(json.dumps([tokenizer.decode(row) for row in rows.tolist()], indent=1))


if __name__ == "__main__":
    app()
