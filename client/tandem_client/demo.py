"""Watch speculation at work: `python -m tandem_client.demo --tokenizer DIR`.

Streams a completion token by token, coloured by which model wrote each token, then the same
prompt without speculation, and compares the two: in further runs by turns, which nobody draws, for
drawing takes the time of the cores that the server may run on.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from tandem_client import errors
from tandem_client.base import Client
from tandem_client.grpc_client import GrpcClient
from tandem_client.types import Completion, SpeculationStats
from tandem_client.typewriter import Origin, Typewriter

_WIDTH = 100
_PROMPT = '''class Queue:
    """A first-in, first-out container."""

    def __init__(self, items):
        self.items = items

    def'''
# Greedy, but for a penalty without which a model this small soon repeats itself.
_SAMPLING = {"temperature": 0.0, "repetition_penalty": 1.15}
_LENGTHS = {"speculative": None, "plain": 0}
"""`num_draft_tokens` by what is compared; None: the server's."""
_TURNS = 5


class Show:
    """Runs requests and shows their tokens."""

    def __init__(self, client: Client, tokenizer: Tokenizer, console: Console, marks: bool) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._console = console
        self._marks = marks

    def legend(self) -> None:
        """Say what the colours mean."""
        Typewriter(self._console, self._marks).legend()

    def warm_up(self, prompt: str) -> None:
        """Have caches, kernels and the connection ready before anything is timed."""
        for k in _LENGTHS.values():
            self._client.generate(prompt, _SAMPLING, max_tokens=16, num_draft_tokens=k)

    def run(self, title: str, prompt: str, max_tokens: int, k: int | None) -> None:
        """Stream one completion to the console; `k` is the draft length, None the server's."""
        self._console.print()
        self._console.rule(title, align="left", style="dim")
        writer = Typewriter(self._console, self._marks)
        writer.write(prompt, Origin.PROMPT)
        decoder = DecodeStream(self._tokenizer.encode(prompt).ids, skip_special_tokens=True)
        chunks = self._client.stream(prompt, _SAMPLING, max_tokens=max_tokens, num_draft_tokens=k)
        with chunks:
            for chunk in chunks:
                for token, drafted in zip(chunk.token_ids, chunk.drafted, strict=True):
                    piece = decoder.step(self._tokenizer, token)
                    writer.write(piece or "", Origin.DRAFTED if drafted else Origin.TARGET)
        writer.end()

    def measure(self, prompt: str, max_tokens: int) -> dict[str, list[Completion]]:
        """Runs that nobody draws, of both by turns: what slows the machine down slows both."""
        found: dict[str, list[Completion]] = {name: [] for name in _LENGTHS}
        with self._console.status(f"{_TURNS} runs of each, without drawing"):
            for _ in range(_TURNS):
                for name, k in _LENGTHS.items():
                    answer = self._client.generate(
                        prompt, _SAMPLING, max_tokens=max_tokens, num_draft_tokens=k
                    )
                    found[name].append(answer)
        return found


def comparison(runs: Mapping[str, Sequence[Completion]]) -> Table:
    """Medians of both side by side."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("speculative", justify="right", style="bold green")
    table.add_column("plain", justify="right")
    drafted, plain = runs["speculative"], runs["plain"]
    both = [[one.timing for one in of] for of in (drafted, plain)]
    fast, slow = (statistics.median(one.tokens_per_second for one in of) for of in both)
    first = [statistics.median(one.time_to_first_token for one in of) for of in both]
    stats = drafted[-1].stats or SpeculationStats(0.0, 0, 0, 0)
    same = len({one.token_ids for one in (*drafted, *plain)}) == 1
    table.add_row(f"tokens/s, median of {len(plain)} runs", f"{fast:.0f}", f"{slow:.0f}")
    table.add_row("speedup", f"{fast / slow:.2f}×", "1.00×")
    table.add_row("time to first token", *(f"{1000 * seconds:.0f} ms" for seconds in first))
    table.add_row("acceptance rate", f"{stats.acceptance_rate:.0%}", "")
    table.add_row("mean acceptance length", f"{stats.mean_acceptance_length:.2f}", "1.00")
    table.add_row("tokens", str(drafted[-1].num_tokens), str(plain[-1].num_tokens))
    table.add_row("the same tokens", "yes" if same else "no", "")
    return table


def main(
    tokenizer: Annotated[Path, typer.Option(help="Folder with the model's tokenizer.json.")],
    url: Annotated[str, typer.Option(help="HOST:PORT of Triton's gRPC.")] = "localhost:8001",
    model: Annotated[str, typer.Option(help="Name of the model on the server.")] = "tandem",
    prompt: Annotated[str, typer.Option(help="What to complete.")] = _PROMPT,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate.")] = 160,
    svg: Annotated[Path | None, typer.Option(help="Also save the picture here.")] = None,
) -> None:
    """Stream a completion with and without speculation and compare them."""
    console = Console(record=svg is not None, highlight=False)
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    # A picture is coloured, whatever the terminal can show.
    marks = console.color_system is None and svg is None
    try:
        with GrpcClient(url, model) as client:
            words = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
            show = Show(client, words, console, marks)
            show.warm_up(prompt)
            show.legend()
            show.run("with speculation", prompt, max_tokens, None)
            show.run("without speculation", prompt, max_tokens, 0)
            runs = show.measure(prompt, max_tokens)
    except errors.TandemError as error:
        print(f"tandem_client.demo: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    console.print(comparison(runs))
    if svg:
        console.save_svg(str(svg), title="python -m tandem_client.demo")


if __name__ == "__main__":
    typer.run(main)
