"""Which starts of Triton count as ones that hang."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.logs import HAS_STARTED, STARTS
from tandem.serving import TritonServer, patience
from tandem.serving.log import LogFollower
from tandem.serving.overrides import entry
from tandem.serving.patience import MARGIN_S, Patience
from tests.serving.models import CONFIG, ECHO, write_model

Start = Callable[..., Patience]
TRITON = 4711


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def start(tmp_path: Path, log: Path, clock: list[float]) -> Start:
    def begin(*models: str, start_timeout: str = "100", config: str = CONFIG) -> Patience:
        for name in models:
            write_model(tmp_path, name, ECHO, config + entry("start_timeout", start_timeout))
        return Patience([tmp_path / name for name in models], TRITON, LogFollower(log))

    return begin


def starts(model: str, triton: int = TRITON) -> str:
    return STARTS.format(model=model, triton=triton)


def has_started(model: str, triton: int = TRITON) -> str:
    return HAS_STARTED.format(model=model, triton=triton)


def lasts(patience: Patience, clock: list[float]) -> float:
    """Seconds."""
    begun = clock[0]
    while not patience.over():
        clock[0] += 0.5
    return clock[0] - begun


def goes_on(patience: Patience, clock: list[float], seconds: int) -> bool:
    """Whether it is not over within them."""
    for _ in range(seconds):
        if patience.over():
            return False
        clock[0] += 1
    return True


def say(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"tandem: {line}\n" for line in lines)


@pytest.mark.parametrize("given, seconds", [("100", 100.0), ("", 1800.0), ("much", 1800.0)])
def test_a_start_may_take_as_long_as_its_models_say(
    start: Start, clock: list[float], given: str, seconds: float
) -> None:
    assert lasts(start("a", start_timeout=given), clock) == seconds + MARGIN_S + 0.5


def test_the_longest_of_all_models_counts_and_none_needs_no_more(
    start: Start, tmp_path: Path, log: Path, clock: list[float]
) -> None:
    assert lasts(start(), clock) == MARGIN_S + 0.5
    start("a", start_timeout="5")
    start("b", start_timeout="300")
    both = Patience([tmp_path / "a", tmp_path / "b"], TRITON, LogFollower(log))
    assert lasts(both, clock) == 300 + MARGIN_S + 0.5


def test_models_that_are_loaded_one_behind_the_other_have_their_own_time_each(
    start: Start, clock: list[float], log: Path
) -> None:
    one = start("a", "b", start_timeout="300")
    for model in "ab":
        say(log, starts(model))
        assert goes_on(one, clock, 300)
        say(log, has_started(model))
    assert lasts(one, clock) == MARGIN_S + 0.5


def test_a_model_that_is_warmed_up_has_all_its_time(
    start: Start, clock: list[float], log: Path
) -> None:
    warmup = 'model_warmup { name: "once" batch_size: 1 }\n'
    one = start("a", start_timeout="300", config=CONFIG + warmup)
    say(log, starts("a"), has_started("a"))
    assert lasts(one, clock) == 300 + MARGIN_S + 0.5


def test_what_another_server_writes_into_the_same_log_is_not_its_own(
    start: Start, clock: list[float], log: Path
) -> None:
    one = start("a", start_timeout="300")
    say(log, starts("a", triton=1), has_started("a", triton=1))
    assert lasts(one, clock) == 300 + MARGIN_S + 0.5


def test_a_configuration_that_is_none_is_left_to_triton(start: Start, clock: list[float]) -> None:
    assert lasts(start("a", config="nonsense: 1"), clock) == 1800 + MARGIN_S + 0.5


def test_what_is_left_to_do_behind_the_engines_is_little(
    start: Start, clock: list[float], log: Path
) -> None:
    one = start("a", "b", start_timeout="1000")
    say(log, starts("a"), starts("b"), has_started("a"))
    assert goes_on(one, clock, 200)
    say(log, has_started("b"))
    assert lasts(one, clock) == MARGIN_S + 0.5


def test_a_models_further_engines_have_their_own_time(
    start: Start, clock: list[float], log: Path
) -> None:
    one = start("a", start_timeout="1000")
    say(log, starts("a"), has_started("a"))
    assert goes_on(one, clock, 50)
    say(log, starts("a"))
    assert goes_on(one, clock, 200)
    say(log, has_started("a"))
    assert lasts(one, clock) == MARGIN_S + 0.5


def test_a_model_that_says_nothing_of_an_engine_has_all_its_time(
    start: Start, clock: list[float], log: Path
) -> None:
    one = start("a", "other", start_timeout="200")
    say(log, starts("a"), has_started("a"))
    assert lasts(one, clock) == 200 + MARGIN_S + 0.5


def test_time_in_which_the_machine_stood_still_counts_little(
    start: Start, clock: list[float]
) -> None:
    one = start("a", start_timeout="100")
    clock[0] += 1e6
    assert not one.over()
    assert lasts(one, clock) == 99 + MARGIN_S + 0.5


@pytest.mark.triton
def test_tandems_models_say_when_their_engine_starts_and_has_started(
    triton_server: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [triton_server.options.model_repository / "tandem"]
    assert triton_server.pid is not None
    seen = Patience(folders, triton_server.pid, LogFollower(triton_server.log_path))
    monkeypatch.setattr(patience, "MARGIN_S", 0.0)
    assert not seen.over()  # it reads that all have started
    assert seen.over()
