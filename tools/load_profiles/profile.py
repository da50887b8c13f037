"""A load profile: a YAML file in perf_analyzer_configs/, typed and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from tandem.errors import TandemError
from tandem.validation import sentences

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "perf_analyzer_configs"
REQUESTS_PER_CLIENT = 3
OF_THE_PROFILE = ("max_tokens", "min_tokens", "ignore_eos", "stop", "num_draft_tokens")


class ProfileError(TandemError):
    """A profile that cannot be read or used, or a measurement that failed."""


Kind = Literal["concurrency", "request_rate"]
UNITS: dict[Kind, str] = {"concurrency": "clients", "request_rate": "requests/s"}


class Load(NamedTuple):
    """A point of a sweep."""

    kind: Kind
    value: float
    """Clients that each wait for their answer, or requests that are sent a second."""

    def __str__(self) -> str:
        if self.kind == "request_rate":
            return f"{self.value:g} requests/s"
        return f"{self.value:g} client{'' if self.value == 1 else 's'}"


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if list(values) != sorted(set(values)):
        raise ValueError("Input should name each value once, the smallest first")
    return values


def _not_of_the_profile(sampling: dict[str, Any]) -> dict[str, Any]:
    if taken := [key for key in OF_THE_PROFILE if key in sampling]:
        raise ValueError(f"Input should not name {taken[0]}, which the profile's other keys decide")
    return sampling


class Profile(BaseModel):
    """What is sent, how much of it, and how it is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    description: str
    inputs: Path
    """JSON lines, each `{"text": "a prompt"}`; the path starts at the profile's folder."""
    fresh_prompts: bool = True
    """Each prompt gets a first line of its own, so that no prefix cache knows it."""
    output_tokens: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    """Least and most tokens of an answer; each answer has exactly the length that it is asked."""
    sampling: Annotated[dict[str, Any], AfterValidator(_not_of_the_profile)] = {}
    """Further sampling parameters of all requests."""
    draft_tokens: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_ascending)
    ] = ()
    """Further lengths of drafts to compare, beside plain decoding and the model's own."""
    concurrency: Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_ascending)] = ()
    request_rate: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...], AfterValidator(_ascending)
    ] = ()
    """Requests a second, on average."""
    arrivals: Literal["poisson", "constant"] = "poisson"
    """Of a request rate: times between requests, or between bursts."""
    burst: Annotated[int, Field(ge=1)] = 1
    """Requests that arrive together."""
    requests: Annotated[int, Field(ge=2)] = 12
    """Measured at a point, at least; and 3 a client. Each client's first is not counted."""
    seconds: Annotated[float, Field(gt=0)] = 6
    """For which a request rate lasts, at least."""
    repeats: Annotated[int, Field(ge=1)] = 2
    """Times that each point is measured, plain and speculative by turns."""
    percentiles: Annotated[
        tuple[Annotated[int, Field(gt=0, lt=100)], ...],
        Field(min_length=1),
        AfterValidator(_ascending),
    ] = (50, 95, 99)
    longest_wait_s: Annotated[float, Field(gt=0)] = 5
    """What a request may wait in a full queue; for the recommended `max_queue_size`."""

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        if self.output_tokens[0] > self.output_tokens[1]:
            raise ValueError("output_tokens should name the least first")
        if not self.concurrency and not self.request_rate:
            raise ValueError("it names neither concurrency nor request_rate: name some loads")
        return self

    @property
    def loads(self) -> list[Load]:
        clients = [Load("concurrency", value) for value in self.concurrency]
        return clients + [Load("request_rate", value) for value in self.request_rate]

    def lengths(self, most: int) -> tuple[int, ...]:
        """The requests' `num_draft_tokens` on a model that drafts at most `most` tokens: 0, which
        is plain decoding, first and the model's own last. Raises `ProfileError` where the profile
        names longer ones, which such a model would cut."""
        named = self.draft_tokens if most else ()  # what never drafts is measured as it is
        if longest := [length for length in named if length > most]:
            raise ProfileError(
                f"The profile names drafts of {longest[-1]} tokens but the model drafts at most "
                f"{most}: raise its num_speculative_tokens (TOKENS={longest[-1]}), or shorten the "
                "profile's draft_tokens."
            )
        return tuple(sorted({0, *named, most}))

    def ramp(self, load: Load) -> int:
        """Requests that are sent first and not counted: clients start all at once."""
        return int(load.value) if load.kind == "concurrency" else 0

    def sent(self, load: Load) -> int:
        """Requests of one measurement of a point, its ramp included."""
        if load.kind == "concurrency":
            return self.ramp(load) + max(self.requests, REQUESTS_PER_CLIENT * int(load.value))
        return max(self.requests, round(load.value * self.seconds))

    def prompts(self) -> list[str]:
        """Raises `ProfileError` where the inputs are no JSON lines with texts."""
        try:
            lines = self.inputs.read_text(encoding="utf-8").splitlines()
            texts = [json.loads(line)["text"] for line in lines]
        except OSError as error:
            raise ProfileError(f"{self.inputs} cannot be read: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError):
            raise ProfileError(
                f'{self.inputs} must hold an object such as {{"text": "a prompt"}} in each line.'
            ) from None
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ProfileError(f"{self.inputs} must hold at least one text, and no empty one.")
        return texts


def load_profile(name: str) -> Profile:
    """By its name in perf_analyzer_configs/, or by the path of a YAML file of your own."""
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        known = ", ".join(sorted(one.stem for one in FOLDER.glob("*.yaml")))
        raise ProfileError(
            f"There is no profile {str(path)!r}: choose one of {known}, or name a .yaml file."
        ) from None
    except yaml.YAMLError as error:
        raise ProfileError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(values, dict):
        raise ProfileError(f"{path} must hold keys and values, as the profiles that ship do.")
    try:
        profile = Profile(**values)
    except ValidationError as error:
        told = sentences(error, "profile key", Profile.model_fields)
        raise ProfileError(f"{path}: {told}") from None
    return profile.model_copy(update={"inputs": path.parent / profile.inputs})
