"""A gRPC service in this process that answers as its prompt says."""

import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tandem_client.wire import to_proto

WAIT = 10.0  # seconds: long enough for any machine, never reached when all is well


def answer(text, reason, **more):
    outputs = {"text_output": text, "finish_reason": reason, "output_ids": [1, 2]}
    tensors = to_proto("", outputs | more)
    response = service_pb2.ModelInferResponse(raw_output_contents=tensors.raw_input_contents)
    for tensor in tensors.inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def final():
    response = service_pb2.ModelStreamInferResponse()
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return response


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Behaves as the prompt says."""

    def __init__(self):
        self.cancelled = threading.Event()
        self.requests = []
        self.hung_up = SimpleQueue()

    def ModelReady(self, request, context):
        self.asked_with = dict(context.invocation_metadata())
        return service_pb2.ModelReadyResponse(ready=request.name == "tandem")

    def ModelStreamInfer(self, requests, context):
        with_codes = "triton_grpc_error" in dict(context.invocation_metadata())
        [request] = list(requests)
        self.requests.append(request)
        names = [tensor.name for tensor in request.inputs]
        prompt = request.raw_input_contents[names.index("text_input")][4:].decode()
        if prompt == "bad" and with_codes:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "say what, with a code")
        if prompt == "bad":
            yield service_pb2.ModelStreamInferResponse(error_message="say what")
            return
        if prompt in ("endless", "bad, then busy"):
            context.add_callback(self.cancelled.set)
        if prompt == "bad, then busy":
            yield service_pb2.ModelStreamInferResponse(error_message="say what")
            self.hung_up.put(self.cancelled.wait(0.5))
            return
        yield answer(prompt, "None")
        if prompt == "broken":
            yield service_pb2.ModelStreamInferResponse(error_message="it broke")
        if prompt in ("broken", "cut"):
            return
        if prompt == "endless":
            self.cancelled.wait(WAIT)
        named = "return_request_id" in names
        yield answer("!", "stop", **({"request_id": f"{request.id}-7"} if named else {}))
        yield final()
        if prompt == "complete, then cut":
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        if prompt == "complete, then late":
            context.add_callback(self.cancelled.set)
            self.cancelled.wait(WAIT)


@pytest.fixture
def service():
    service = Service()
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    service.url = f"localhost:{server.add_insecure_port('localhost:0')}"
    server.start()
    yield service
    service.cancelled.set()
    server.stop(None).wait()
