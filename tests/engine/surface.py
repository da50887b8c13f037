"""What holds for every request and every configuration, whatever they say.

The property tests and the coverage-guided fuzzer (`tools/fuzz.py`) feed it.
"""

from __future__ import annotations

import json
import logging
import pickle
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from tandem import SamplingParams
from tandem.errors import ConfigError, InvalidRequestError, TandemError
from tandem.messages import Submit
from tandem.request import RequestOutput
from tests.engine import fake_pb_utils
from tests.engine.fake_pb_utils import Request, TritonError

fake_pb_utils.install()

from tandem.triton_model import TritonPythonModel, engine_config  # noqa: E402
from tandem.triton_request import FLAGS as FLAGS  # noqa: E402
from tandem.triton_request import name_of, parse, taken_back  # noqa: E402

MAX_BYTES = 1 << 16
LONGEST_SENTENCE = 600  # of an error; what it quotes is cut
REACHES_OUT = {
    *("open", "os.listdir", "os.scandir", "os.exec", "os.fork", "os.posix_spawn", "os.system"),
    *("subprocess.Popen", "socket.connect", "socket.getaddrinfo", "import", "exec", "shutil.move"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod"),
}
_recorders: list[list[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in REACHES_OUT:
        for recorder in _recorders:
            recorder.append(f"{event} {arguments}")


sys.addaudithook(_audit)  # Python has no way to take one back


@contextmanager
def within_the_process() -> Iterator[None]:
    """No file, process or address is touched, whatever is said. Nothing is logged meanwhile: a
    traceback in the log reads the source."""
    events: list[str] = []
    _recorders.append(events)
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        _recorders.remove(events)
    assert not events, events


class StandIn:
    """Takes what the engine's service takes, across the same border, and answers in two parts."""

    def __init__(self) -> None:
        self.sinks: dict[str, Any] = {}
        self.asked: list[Submit] = []

    def check_room(self) -> None:
        """There always is."""

    def submit(self, prompt: str | list[int], params: SamplingParams, sink: Any, name: str) -> str:
        assert name.isprintable()
        message = Submit(f"{name}-{len(self.asked)}", prompt, params, 0.0)
        assert pickle.loads(pickle.dumps(message)) == message
        self.asked.append(message)
        self.sinks[message.request_id] = sink
        return message.request_id

    def abort(self, request_id: str) -> None:
        self.sinks.pop(request_id).on_output(RequestOutput(request_id, finish_reason="abort"))

    def finish(self) -> None:
        """Answers whoever has not left."""
        for request_id, sink in self.sinks.items():
            sink.on_output(RequestOutput(request_id, text="x", token_ids=[1]))
            sink.on_output(RequestOutput(request_id, token_ids=[2], finish_reason="length"))
        self.sinks.clear()


def check_request(service: StandIn, request: Request, codes: Collection[int]) -> None:
    """It ends once: with an answer, cancelled, or with a sentence and one of the codes. The request
    behind it is served."""
    model: Any = TritonPythonModel()
    model.service, model.active, model.reports = service, {}, SimpleQueue()
    model.max_prompt_bytes, model.early = MAX_BYTES, {}
    good = Request({"text_input": b"t1", "exclude_input_in_output": True}, own_id="good")
    before = len(service.asked)
    with within_the_process():
        model.execute([request, good])
        model._look_for_cancels()
        service.finish()
    sender = request.sender
    assert sender.finals == 1
    for response in sender.sent[:-1]:
        assert response.error is None
    error = sender.sent[-1].error
    if error is not None and not (sender.cancelled and error.code == TritonError.CANCELLED):
        assert error.code in codes, str(error)
        check_sentence(str(error))
    waited = len(service.asked) == before + 2  # what takes back another is answered at once
    assert error or not (waited and sender.cancelled), "it was not noticed that the client left"
    assert good.sender.finals == 1 and good.sender.sent[-1].text()
    assert not model.active


def check_parse(request: Request) -> None:
    """It is read, or refused with a sentence."""
    with within_the_process():
        try:
            name_of(request)
            taken_back(request, MAX_BYTES)
            parse(request, MAX_BYTES)
        except InvalidRequestError as error:
            check_sentence(str(error))


def check_config(parameters: dict[str, str]) -> None:
    """The parameters of a config.pbtxt are a configuration, or are refused with a sentence."""
    written = {key: {"string_value": value} for key, value in parameters.items()}
    args = {
        "model_config": json.dumps({"parameters": written}),
        "model_repository": "/models/tandem",
        "model_version": "1",
    }
    with within_the_process():
        try:
            config = engine_config(args)
        except ConfigError as error:
            check_sentence(str(error))
        else:
            assert config.lookahead >= 0 and config.method in config.methods


def check_sentence(text: str) -> None:
    """One line that ends, of a length that somebody reads, fit for a terminal and for UTF-8."""
    assert text.isprintable() and text.endswith("."), ascii(text)
    assert len(text) <= LONGEST_SENTENCE, f"{len(text)} characters: {text[:200]}"
    assert "Traceback" not in text, text


class Served(StandIn):
    """The stand-in with an engine: what `service_worker` does, in this process."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine

    def finish(self) -> None:
        """Runs the engine until everybody is answered."""
        for message in self.asked:
            sink = self.sinks.get(message.request_id)
            if sink is None:
                continue
            try:
                self.engine.add_request(message.prompt, message.params, message.request_id)
            except TandemError as error:
                self.sinks.pop(message.request_id).on_error(error)
        while not self.engine.idle:
            for output in self.engine.step():
                self.sinks[output.request_id].on_output(output)
        self.sinks.clear()
        self.asked.clear()
        self.engine.check_integrity()
