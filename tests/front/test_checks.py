"""What requests are passed on, and what is refused."""

import json
import time

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tandem.front.checks import RefusedError, check_message, check_tensors, read_json
from tandem.front.http_front import named


def request(shape, content, **more):
    found = service_pb2.ModelInferRequest(model_name="tandem")
    found.inputs.add(name="input_ids", datatype="INT32", shape=shape, **more)
    found.raw_input_contents.append(content)
    return found


def test_what_fits_is_let_in():
    ids = np.arange(5, dtype="<i4").tobytes()
    check_message(request([5], ids).SerializeToString())
    check_message(request([0], b"").SerializeToString())
    typed = service_pb2.ModelInferRequest(model_name="tandem")
    typed.inputs.add(name="stream", datatype="BOOL", shape=[64]).contents.bool_contents.extend(
        [False] * 64
    )
    check_message(typed.SerializeToString())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (request([1 << 62], b"").SerializeToString(), "more elements"),
        (request([1 << 31, 1 << 31, 4], b"").SerializeToString(), "more elements"),
        (request([-1], b"1234").SerializeToString(), "more elements"),
        (request([127] * 3_000_000, b"").SerializeToString(), "too many dimensions"),
        (b"\xff\xff", "no ModelInferRequest"),
    ],
    ids=["huge", "product", "negative", "many", "no message"],
)
def test_what_does_not_is_refused(content, said):
    begun = time.monotonic()
    with pytest.raises(RefusedError, match=said) as raised:
        check_message(content)
    assert len(str(raised.value)) < 400  # which goes into a header
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("where", ["request", "input", "output"])
def test_shared_memory_is_refused(where):
    asked = request([1], b"1234")
    asked.outputs.add(name="text_output")
    named = {"request": asked, "input": asked.inputs[0], "output": asked.outputs[0]}[where]
    named.parameters["shared_memory_region"].string_param = "a"
    with pytest.raises(RefusedError, match="Shared memory"):
        check_message(asked.SerializeToString())


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
        ({"outputs": [{"parameters": {"shared_memory_region": "a"}}]}, "Shared memory"),
        ({"parameters": {"shared_memory_region": "a"}}, "Shared memory"),
        ({"parameters": 5}, "no inference request"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(said, refused):
    with pytest.raises(RefusedError, match=refused):
        check_tensors(said, 1000)


DEEP = "[" * 100_000


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
        ("", "no JSON"),
    ],
    ids=["arrays", "objects", "whole", "quotes", "behind", "number", "surrogate", "twice", "empty"],
)
def test_json_that_breaks_triton_is_refused(text, said):
    with pytest.raises(RefusedError, match=said) as raised:
        read_json(text.encode(errors="surrogatepass"))
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "text", ['{"text_input": "a"}', ' \n{ "a" : {"b": 1} }', "{}", '{"id": "x"}']
)
def test_a_request_gets_a_name(text):
    body, name = named(text.encode())
    assert len(name) == 32
    assert json.loads(body) == json.loads(text) | {"cancel_id": name}


@pytest.mark.parametrize(
    ("text", "name"),
    [('{"cancel_id": "mine", "a": 1}', "mine"), ('{"cancel": "x"}', ""), ("[1]", ""), ("5", "")],
)
def test_what_has_a_name_or_takes_back_is_passed_on_as_it_is(text, name):
    assert named(text.encode()) == (text.encode(), name)
