"""What goes out and what comes in, without a server."""

import json

import pytest
from tritonclient.grpc import service_pb2

from tandem_client import (
    AsyncGrpcClient,
    AsyncHttpClient,
    Chunk,
    GenerationParams,
    GrpcClient,
    HttpClient,
    InvalidArgument,
    SpeculationStats,
)
from tandem_client.wire import json_outputs, proto_outputs, request_fields, to_chunk, to_proto


def test_only_keys_that_are_set_are_sent():
    params = GenerationParams.of({"temperature": 0.0, "seed": 7}, max_tokens=5, num_draft_tokens=0)
    assert json.loads(params.sampling_json()) == {"max_tokens": 5, "temperature": 0.0, "seed": 7}


def test_overrides_win_and_unknown_keys_are_refused():
    base = GenerationParams(max_tokens=5, top_k=3)
    assert GenerationParams.of(base, max_tokens=6) == GenerationParams(max_tokens=6, top_k=3)
    with pytest.raises(TypeError, match="max_token"):
        GenerationParams.of({"max_token": 5})
    with pytest.raises(TypeError, match="temprature"):
        GenerationParams.of(temprature=0.0)


def test_without_details_the_fields_are_those_of_the_vllm_backend():
    fields = request_fields("hi", GenerationParams(logprobs=2), details=False, timeout=3)
    assert json.loads(fields["sampling_parameters"]) == {"logprobs": 2}
    assert set(fields) == {
        "text_input",
        "stream",
        "sampling_parameters",
        "return_finish_reason",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "return_logprobs",
    }


def test_zero_draft_tokens_is_sent_and_token_ids_replace_the_text():
    fields = request_fields([1, 2], GenerationParams(num_draft_tokens=0), details=True)
    assert fields["num_draft_tokens"] == 0
    assert fields["input_ids"] == [1, 2]
    assert "text_input" not in fields


def test_an_id_is_no_tensor_over_grpc():
    fields = request_fields("hi", GenerationParams(), details=True, request_id="order 66")
    request = to_proto("m", fields)
    assert request.id == fields["id"] == "order 66"
    assert "id" not in {tensor.name for tensor in request.inputs}
    assert len(request.inputs) == len(request.raw_input_contents) == len(fields) - 1


@pytest.mark.parametrize("number", [2**31, 2**32 + 5, -(2**31) - 1, 10**30])
def test_a_number_beyond_32_bits_is_refused_and_not_made_another(number):
    tokens = request_fields([1, number], GenerationParams(), details=True)
    with pytest.raises(InvalidArgument, match=f"input_ids has {number}, which takes more than 32"):
        to_proto("m", tokens)
    drafts = request_fields("hi", GenerationParams(num_draft_tokens=number), details=True)
    with pytest.raises(InvalidArgument, match="num_draft_tokens has"):
        to_proto("m", drafts)


@pytest.mark.parametrize(
    "prompt, name, params, what",
    [
        ("a\ud800", None, {}, "The prompt"),
        ("a", "b\udcff", {}, "The request id"),
        ("a", None, {"stop": "c\udcff"}, "A stop string"),
        ("a", None, {"stop": ["a", "c\udcff"]}, "A stop string"),
        ("a", None, {"bad_words": ["c\udcff"]}, "A bad word"),
    ],
)
def test_text_that_is_none_is_refused(prompt, name, params, what):
    with pytest.raises(InvalidArgument, match=rf"{what} has '\\ud\w+' at character 2, "):
        request_fields(prompt, GenerationParams(**params), details=True, request_id=name)


@pytest.mark.parametrize("client", [GrpcClient, HttpClient, AsyncGrpcClient, AsyncHttpClient])
def test_a_models_name_that_is_no_text_is_refused(client):
    with pytest.raises(InvalidArgument, match=r"The model's name has '\\udcff' at character 2"):
        client("localhost:1", "a\udcff")


def test_proto_tensors_round_trip():
    fields = {"text_input": "hé€", "stream": True, "input_ids": [1, -2, 70000]}
    request = to_proto("m", fields)
    response = service_pb2.ModelInferResponse(raw_output_contents=request.raw_input_contents)
    for tensor in request.inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    assert proto_outputs(response) == {
        "text_input": ["hé€"],
        "stream": [True],
        "input_ids": [1, -2, 70000],
    }
    assert request.parameters["triton_enable_empty_final_response"].bool_param


def test_a_json_response_becomes_a_chunk():
    message = {
        "model_name": "tandem",
        "model_version": "1",
        "text_output": "ab",
        "finish_reason": "stop",
        "output_ids": [4, 5],
        "output_drafted": [True, False],
        "num_output_tokens": 2,
        "logprobs": '[{"4": {"logprob": -0.5}}, {"5": {"logprob": -1.0}}]',
        "acceptance_rate": 0.5,
        "total_draft_tokens": 8,
        "total_accepted_draft_tokens": 4,
        "num_rounds": 2,
    }
    assert to_chunk(json_outputs(message)) == Chunk(
        text="ab",
        token_ids=(4, 5),
        drafted=(True, False),
        num_tokens=2,
        finish_reason="stop",
        logprobs=({"4": {"logprob": -0.5}}, {"5": {"logprob": -1.0}}),
        stats=SpeculationStats(0.5, 8, 4, 2),
    )


def test_an_intermediate_response_is_not_finished():
    chunk = to_chunk({"text_output": ["a"], "finish_reason": ["None"], "output_ids": [9]})
    assert chunk.finish_reason is None
    assert chunk.num_tokens == 1  # counted from the ids when the server sent no count


def test_mean_acceptance_length_counts_the_targets_own_token():
    assert SpeculationStats(0.5, 8, 4, 2).mean_acceptance_length == 3.0
    assert SpeculationStats(0.0, 0, 0, 0).mean_acceptance_length == 1.0
