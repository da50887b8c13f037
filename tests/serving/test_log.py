# ruff: noqa: E501  log lines are as long as they are
import os
from pathlib import Path

from tandem.serving.log import LogFollower, failure_reason, read_log

LOAD_FAILURE = r"""
E1121 02:13:19.300000 5405 server.cc:241] "CudaDriverHelper has not been initialized."
E1121 02:13:19.331770 5405 backend_model.cc:692] "ERROR: Failed to create instance: ValueError: no\n\nAt:\n  m.py"
E1121 02:13:19.331901 5405 model_lifecycle.cc:642] "failed to load 'm' version 1: Internal: ValueError: a\nb\n\nAt:\n  m.py(3): initialize\n"
error: creating server: Invalid argument - load failed for model 'm'
"""


def test_the_cause_is_told_from_its_consequences() -> None:
    assert failure_reason(LOAD_FAILURE) == "model 'm' failed to load: ValueError: a b"


def test_a_standstill_is_told_where_triton_knows_no_more_than_its_consequence() -> None:
    said = "tandem: While the model was loaded its process did not run for 2.1 s.\n"
    log = (
        said
        + """E1126 21:47:04.174674 1758 model_lifecycle.cc:642] "failed to load 'm' version 1: Internal: Stub process 'm_0_0' is not healthy."\n"""
    )
    assert failure_reason(log) == "While the model was loaded its process did not run for 2.1 s."
    assert failure_reason(said + LOAD_FAILURE) == "model 'm' failed to load: ValueError: a b"


def test_quotes_are_optional_as_in_older_servers() -> None:
    log = "E1121 02:13:19.331901 5405 model_lifecycle.cc:642] failed to load 'm' version 1: Internal: x"
    assert failure_reason(log) == "model 'm' failed to load: x"


def test_without_an_error_line_the_last_words_count() -> None:
    log = "error: creating server: Internal - failed to load all models\n"
    assert failure_reason(log) == "creating server: Internal - failed to load all models"
    assert failure_reason("I1121 all is well\n") is None


def test_an_argument_that_triton_refuses_is_named() -> None:
    log = "\nBad option: \"--a\".\n--a option format is 'b'. Got c\n\n\nUsage: tritonserver [options]\n"
    assert failure_reason(log) == "--a option format is 'b'. Got c"


def test_a_follower_waits_for_whole_lines_and_survives_tidying(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    follower = LogFollower(path)
    with path.open("w") as log:
        log.write("one\ntw")
        log.flush()
        assert follower.new_lines() == ["one"]
        path.unlink()
        log.write("o\n")
        log.flush()
        assert follower.new_lines() == ["two"]
        assert follower.new_lines() == []


def test_a_log_that_goes_on_is_read_from_where_it_went_on_or_was_emptied(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old and long\n")
    follower = LogFollower(path, begin=13)
    with path.open("a") as log:
        log.write("new\nhal")
        log.flush()
        assert (read_log(path, 13), follower.new_lines()) == ("new\nhal", ["new"])
        os.truncate(path, 0)
        log.write("one\n")
        log.flush()
        assert (read_log(path, 13), follower.new_lines()) == ("one\n", ["one"])
    path.unlink()
    assert read_log(path) == ""
