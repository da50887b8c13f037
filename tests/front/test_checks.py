"""What requests are passed on, and what is refused."""

import json
import time

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tandem.front.checks import (
    MOST_TENSORS,
    RefusedError,
    check_message,
    check_tensors,
    read_json,
    read_message,
)
from tandem.front.http_front import named
from tandem.front.misread import LONGEST_INPUT, members_of
from tests.triton.raw import message


def request(shape, content, **more):
    found = service_pb2.ModelInferRequest(model_name="tandem")
    found.inputs.add(name="input_ids", datatype="INT32", shape=shape, **more)
    found.raw_input_contents.append(content)
    return found


def of_model(name, version=""):
    return service_pb2.ModelInferRequest(model_name=name, model_version=version).SerializeToString()


def check(content):
    check_message(read_message(content), len(content))


def test_what_fits_is_let_in():
    ids = np.arange(5, dtype="<i4").tobytes()
    check(request([5], ids).SerializeToString())
    check(request([0], b"").SerializeToString())
    for version in ("", "0", "1", "1" * 19):
        check(of_model("a" * 256, version))
    typed = service_pb2.ModelInferRequest(model_name="tandem")
    typed.inputs.add(name="stream", datatype="BOOL", shape=[64]).contents.bool_contents.extend(
        [False] * 64
    )
    check(typed.SerializeToString())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (request([1 << 62], b"").SerializeToString(), "more elements"),
        (request([1 << 31, 1 << 31, 4], b"").SerializeToString(), "more elements"),
        (request([-1], b"1234").SerializeToString(), "more elements"),
        (request([127] * 3_000_000, b"").SerializeToString(), "too many dimensions"),
        (request([0, 1 << 62], b"").SerializeToString(), "more elements"),
        (b"\xff\xff", "no ModelInferRequest"),
        (b"\x0a\x05abc", "no ModelInferRequest"),
        (b"\x2a\x00" * (1 << 21), "256 parts"),
        (b"\x48\x01" + b"\x2a\x00" * (1 << 21), "no ModelInferRequest"),
        (b"\x4b\x4c" + b"\x2a\x00" * (1 << 21), "no ModelInferRequest"),
        (b"\x2a" + b"\xff" * 100, "no ModelInferRequest"),
        (of_model("a" * 257), "no model"),
        (message([], {}, "a" * 257), "id is of 257"),
        *(
            (of_model("a", one), "digits or nothing")
            for one in ("1x", "01", "-1", "1" * 20, "\u0661")
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else f"{len(given)} bytes",
)
def test_what_does_not_is_refused(content, said):
    begun = time.monotonic()
    with pytest.raises(RefusedError, match=said) as raised:
        check(content)
    assert len(str(raised.value)) < 400  # which goes into a header
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("where", ["input", "output"])
@pytest.mark.parametrize("name", ["shared_memory_region", "classification"])
def test_parameters_of_tensors_that_are_not_for_clients_are_refused(where, name):
    """By the classification of a text Triton 2.51 ends."""
    asked = request([1], b"1234")
    asked.outputs.add(name="text_output").parameters["binary_data"].bool_param = True
    check(asked.SerializeToString())
    named = {"input": asked.inputs[0], "output": asked.outputs[0]}[where]
    named.parameters[name].int64_param = 1
    with pytest.raises(RefusedError, match=name):
        check(asked.SerializeToString())


TENSOR = {"name": "a", "datatype": "INT32", "shape": [2], "data": [1, 2]}


@pytest.mark.parametrize(
    "said",
    [
        {"inputs": [TENSOR]},
        {"inputs": [TENSOR | {"parameters": {"binary_data_size": 8}}], "outputs": [{"name": "b"}]},
        {"id": "1", "parameters": {"priority": 1}},
    ],
    ids=["plain", "binary", "no input"],
)
def test_tensors_that_fit_are_let_in(said):
    check_tensors(said, len(json.dumps(said)))


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"inputs": [TENSOR | {"shape": [1 << 62]}]}, "more elements"),
        ({"inputs": [TENSOR | {"shape": [-1]}]}, "more elements"),
        ({"inputs": [TENSOR | {"shape": [1] * 17}]}, "too many dimensions"),
        ({"inputs": [TENSOR | {"shape": [1e18]}]}, "no list of integers"),
        ({"inputs": [TENSOR | {"shape": 5}]}, "no list of integers"),
        ({"inputs": [5]}, "no inference request"),
        ([TENSOR], "no inference request"),
        ({"outputs": [{"parameters": {"shared_memory_region": "a"}}]}, "shared_memory_region"),
        ({"outputs": [{"name": "b", "parameters": {"classification": 1}}]}, "classification"),
        ({"parameters": 5}, "no inference request"),
        ({"outputs": [{}] * 257}, "256 tensors"),
        ({"inputs": [TENSOR | {"shape": [0, 1 << 62]}]}, "more elements"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(said, refused):
    with pytest.raises(RefusedError, match=refused):
        check_tensors(said, 1000)


DEEP = "[" * 40_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DEEP, "too deep"),
        (DEEP.replace("[", '{"a":'), "too deep"),
        ('{"text_input": ' + DEEP + DEEP.replace("[", "]") + "}", "too deep"),
        ("{'a': 1}", "no JSON"),
        ("{} " + DEEP, "no JSON"),
        ('{"a": %s}' % ("9" * 10_000), "no JSON"),
        ("\ud800", "no JSON"),
        ('{"inputs": [], "inputs": []}', "twice"),
        ("[" + "[]," * 1_300_000 + "[]]", "50000 brackets"),
        ("[" + '["\\"[[["],' * 400_000 + "[]]", "50000 brackets"),
        ("[" + '"[\\"",' * 700_000 + "1", "no JSON"),
        ("[" + '["' * 1_000_000, "50000 brackets"),
        ('"' + "[" * 50_001 + '\\"' * 1_900_000 + "\\", "no JSON"),
        ("", "no JSON"),
    ],
    ids=lambda given: given[:12],
)
def test_json_that_breaks_triton_is_refused(text, said):
    begun = time.monotonic()
    with pytest.raises(RefusedError, match=said) as raised:
        read_json(text.encode(errors="surrogatepass"))
    assert len(str(raised.value)) < 400
    assert time.monotonic() - begun < 1


def test_a_long_prompt_is_let_in():
    for prompt in ('[{,\\"' * 200_000, [1] * 262_144):
        assert read_json(json.dumps({"text_input": prompt}).encode()) == {"text_input": prompt}


@pytest.mark.parametrize(
    "text", ['{"text_input": "a"}', ' \n{ "a" : {"b": 1} }', "{}", '{"id": "x"}']
)
def test_a_request_gets_a_name(text):
    body, name, *_ = named(text.encode())
    assert len(name) == 32
    assert json.loads(body) == json.loads(text) | {"cancel_id": name}


@pytest.mark.parametrize(
    ("text", "name"),
    [('{"cancel_id": "mine", "a": 1}', "mine"), ('{"cancel": "x"}', "")],
)
def test_what_has_a_name_or_takes_back_is_passed_on_as_it_is(text, name):
    assert named(text.encode())[:3] == (text.encode(), name, "cancel" in json.loads(text))


def test_of_members_little_is_kept():
    """For as long as their request goes on."""
    some = {"a": [1, "b"], "c" * (LONGEST_INPUT + 1): 1, "parameters": {"d": True}}
    types = {"a": {int, str}, "parameters": {dict}, "d": {bool}}
    assert members_of(some) == types
    assert len(members_of(dict.fromkeys(map(str, range(2 * MOST_TENSORS))))) == MOST_TENSORS


@pytest.mark.parametrize(
    "said",
    [
        {"cancel_id": ""},
        {"cancel_id": 5},
        {"cancel_id": "a" * 129},
        {"cancel": "a" * 129},
        {"cancel_id": False},
        {"cancel": None},
        {"parameters": {"cancel_id": "a"}},
        {"parameters": {"cancel": "a"}},
    ],
    ids=str,
)
def test_names_that_the_model_would_read_otherwise_are_refused(said):
    with pytest.raises(RefusedError, match="cancel"):
        named(json.dumps({"text_input": "a", **said}).encode())
