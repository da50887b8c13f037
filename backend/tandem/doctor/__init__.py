"""`tandem doctor`: looks at everything that must be right before a model is served."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from tandem.doctor.finding import Finding, Level, failure
from tandem.doctor.machine import examine_machine
from tandem.doctor.models import examine_models
from tandem.doctor.software import examine_software

__all__ = ["Finding", "Level", "examine", "report"]

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


def examine(
    model_repository: Path,
    models: Sequence[str] | None,
    triton: Path | None,
    parameters: Mapping[str, str],
) -> Iterator[Finding]:
    """Findings one by one; `models` None: all of the repository. parameters: other values than
    config.pbtxt has."""
    yield from _guarded("software", lambda: examine_software(triton))
    yield from _guarded("machine", examine_machine)
    yield from _guarded("models", lambda: examine_models(model_repository, models, parameters))


def _guarded(what: str, examination: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A doctor that stumbles over one thing still looks at the others."""
    try:
        yield from examination()
    except Exception as error:
        yield failure(
            what, f"the check itself failed ({type(error).__name__}: {error})", "report it"
        )


def report(findings: Iterator[Finding], console: Console) -> bool:
    """Prints a line a finding as it comes; True when one of them is a failure."""
    worst = Level.OK
    for finding in findings:
        remedy = f" → {finding.remedy}" if finding.remedy else ""
        console.print(f"{finding.level.name.lower():8}", style=_STYLES[finding.level], end="")
        line = f"{finding.subject}: {finding.text}{remedy}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        worst = max(worst, finding.level)
    return worst is Level.FAILURE
