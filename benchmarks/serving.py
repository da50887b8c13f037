"""What Triton costs: tokens/s of each engine by itself and through a real tritonserver.

The same prompts, in turns, at batch 1 and 8: `python -m benchmarks.serving` prints the ratio and
writes benchmarks/results/serving.json. Each side begins when the other has come to rest.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Annotated, NamedTuple

import grpc
import psutil
import torch
import typer
from rich.console import Console
from rich.progress import track
from tritonclient.grpc import service_pb2

from benchmarks.common import CACHE, MODELS, ROOT, machine, prompts, save, show
from benchmarks.contenders import Contender, started
from benchmarks.peers.process import VLLM, Peer, settle
from tandem import Engine, EngineConfig, SamplingParams
from tandem.serving import ServerOptions, TritonServer
from tandem.serving.model_config import read_model
from tandem.serving.overrides import overridden
from tandem.tokenizer import Tokenizer
from tandem_client.wire import to_proto

BATCHES = (1, 8)
METHODS = {"plain": ("none", 0), "draft model k=4": ("draft_model", 4)}
REPOSITORY = ROOT / "model_repository"
NATIVE = {"enable_prefix_caching": "false", "num_speculative_tokens": "4"}
# As vLLM is by itself (`vllm_engine`): compiled, and drafting at every batch size.
OF_VLLM = {
    "vllm_engine_args": '{"enforce_eager": false}',
    "enable_prefix_caching": "false",
    "max_model_len": "1024",
    "max_num_seqs": str(max(BATCHES)),
    "speculative_disable_by_batch_size": "",
}
Side = Callable[[list[str]], float]
"""Tokens a second of all these prompts together."""


class Case(NamedTuple):
    """An engine by itself, and in Triton."""

    name: str
    inside: Side
    served: Side


def main(
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 256,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 7,
) -> None:
    """Measures and reports."""
    texts = prompts("heldout", max(BATCHES))
    result: dict[str, object] = {"machine": machine(), "new_tokens": new_tokens}
    rows = []
    for case in chain(_native(new_tokens), _vllm(new_tokens)):
        for batch in BATCHES:
            name = f"{case.name}, batch {batch}"
            pairs = _measure(name, case, texts[:batch], repeats)
            inside, served = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            rows.append((name, f"{inside:.0f}", f"{served:.0f}", f"{ratio:.0%}"))
            result[name] = {"in_process": inside, "triton": served, "ratio": ratio}
            save("serving", result)
    show("tokens/s of all requests together", ["", "by itself", "Triton, gRPC", "ratio"], rows)


def _native(new_tokens: int) -> Iterator[Case]:
    model = read_model(REPOSITORY / "tandem")
    values = {**model.parameters, **NATIVE}
    config = EngineConfig.from_triton_parameters(values, model.version_folder)
    with _serving("tandem", NATIVE) as server, Engine(config) as engine:
        for name, (_, k) in METHODS.items():
            inside = partial(_in_process, engine, new_tokens, k)
            served = partial(_through_triton, server, "tandem", new_tokens, k)
            yield Case(f"native, {name}", inside, served)


def _vllm(new_tokens: int) -> Iterator[Case]:
    """vLLM's own class, and our model around it."""
    for name, (method, k) in METHODS.items():
        with ExitStack() as stack:
            contender = Contender(VLLM, method, k)
            threads = torch.get_num_threads()
            peer = stack.enter_context(started(contender, MODELS / "target", threads, max(BATCHES)))
            drafts = {} if k else {"draft_model": ""}
            values = OF_VLLM | {"speculative_method": method} | drafts
            server = stack.enter_context(_serving("tandem_vllm", values))
            inside = partial(_by_peer, peer, new_tokens)
            served = partial(_through_triton, server, "tandem_vllm", new_tokens, k)
            yield Case(f"vLLM, {name}", inside, served)


@contextmanager
def _serving(model: str, parameters: Mapping[str, str]) -> Iterator[TritonServer]:
    log = CACHE / "logs" / f"serving-{model}.log"
    with (
        overridden(REPOSITORY, (model,), parameters) as made,
        TritonServer(ServerOptions(made, (model,), log_path=log)) as server,
    ):
        yield server


def _measure(name: str, case: Case, texts: list[str], repeats: int) -> list[tuple[float, float]]:
    """Pairs of tokens/s, by itself and through Triton, after one unmeasured pair."""
    pairs = []
    for turn in track(range(repeats + 1), description=name, console=Console(stderr=True)):
        if turn % 2:
            inside, served = case.inside(texts), case.served(texts)
        else:
            served, inside = case.served(texts), case.inside(texts)
        pairs.append((inside, served))
    return pairs[1:]


def _by_peer(peer: Peer, new_tokens: int, texts: list[str]) -> float:
    tokenizer = Tokenizer(MODELS / "target")
    run = peer.run([tokenizer.encode(text) for text in texts], new_tokens)
    return run.tokens / run.seconds


def _in_process(engine: Engine, new_tokens: int, k: int, texts: list[str]) -> float:
    params = SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, num_draft_tokens=k
    )
    for text in texts:
        engine.add_request(text, params)
    start = time.perf_counter()
    tokens = 0
    while not engine.idle:
        tokens += sum(len(output.token_ids) for output in engine.step())
    return tokens / (time.perf_counter() - start)


def _through_triton(
    server: TritonServer, model: str, new_tokens: int, k: int, texts: list[str]
) -> float:
    """One stream a prompt, all at once, by a client that costs as little as a client can: it
    shares the cores with what it measures. It keeps the raw messages and reads them afterwards."""
    sampling = {"temperature": 0, "max_tokens": new_tokens, "ignore_eos": True}
    requests = [
        to_proto(
            model,
            {
                "text_input": text,
                "stream": True,
                "sampling_parameters": json.dumps(sampling),
                "num_draft_tokens": k,
            },
        )
        for text in texts
    ]
    with (
        grpc.insecure_channel(server.endpoints.grpc) as channel,
        ThreadPoolExecutor(len(texts)) as pool,
    ):
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        )
        grpc.channel_ready_future(channel).result()
        start = time.perf_counter()
        answers = list(pool.map(lambda request: list(call(iter([request]))), requests))
        seconds = time.perf_counter() - start
    settle(psutil.Process(server.pid), server.log_path)
    for messages in answers:
        for message in messages:
            error = service_pb2.ModelStreamInferResponse.FromString(message).error_message
            if error:
                raise RuntimeError(error)
    return len(texts) * new_tokens / seconds


if __name__ == "__main__":
    typer.run(main)
