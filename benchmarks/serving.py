"""What Triton costs: tokens/s of each engine by itself and through a real tritonserver.

The same prompts, in turns, at batch 1 and 8: `python -m benchmarks.serving` prints the ratio and
writes benchmarks/results/serving.json. Each side begins when the other has come to rest.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Annotated, NamedTuple

import grpc
import torch
import typer
from rich.console import Console
from rich.progress import track
from tritonclient.grpc import service_pb2

from benchmarks.common import MODELS, ROOT, machine, prompts, save, show
from benchmarks.contenders import Contender, started
from benchmarks.peers.process import VLLM, Peer
from tandem import Engine, EngineConfig, SamplingParams
from tandem.serving import ServerOptions, TritonServer
from tandem.serving.overrides import overridden
from tandem.tokenizer import Tokenizer
from tandem_client.wire import to_proto

BATCHES = (1, 8)
REST_S = 1.0
METHODS = {"plain": ("none", 0), "draft model k=4": ("draft_model", 4)}
# As vLLM is by itself: its graphs are compiled, and no repeat knows its prompt.
BARE = {"vllm_engine_args": "{}", "enable_prefix_caching": "false"}
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
    for cases in (_native(new_tokens), _vllm(new_tokens)):
        for case in cases:
            for batch in BATCHES:
                name = f"{case.name}, batch {batch}"
                pairs = _measure(name, case, texts[:batch], repeats)
                inside, served = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
                ratio = statistics.median(b / a for a, b in pairs)
                rows.append((name, f"{inside:.0f}", f"{served:.0f}", f"{ratio:.0%}"))
                result[name] = {"in_process": inside, "triton": served, "ratio": ratio}
    show("tokens/s of all requests together", ["", "by itself", "Triton, gRPC", "ratio"], rows)
    save("serving", result)


def _native(new_tokens: int) -> Iterator[Case]:
    config = EngineConfig(model=MODELS / "target", draft_model=MODELS / "draft")
    options = ServerOptions(ROOT / "model_repository", ("tandem",))
    with TritonServer(options) as server, Engine(config) as engine:
        for name, (_, k) in METHODS.items():
            inside = partial(_in_process, engine, new_tokens, k)
            served = partial(_through_triton, server.endpoints.grpc, "tandem", new_tokens, k)
            yield Case(f"native, {name}", inside, served)


def _vllm(new_tokens: int) -> Iterator[Case]:
    """vLLM's own class, and our model around it."""
    for name, (method, k) in METHODS.items():
        with ExitStack() as stack:
            contender = Contender(VLLM, method, k)
            threads = torch.get_num_threads()
            peer = stack.enter_context(started(contender, MODELS / "target", threads, max(BATCHES)))
            values = BARE | {"speculative_method": method, "num_speculative_tokens": str(k or 1)}
            if method == "none":
                values["draft_model"] = ""
            repository = ROOT / "model_repository"
            made = stack.enter_context(overridden(repository, ("tandem_vllm",), values))
            server = stack.enter_context(TritonServer(ServerOptions(made, ("tandem_vllm",))))
            inside = partial(_by_peer, peer, new_tokens)
            served = partial(_through_triton, server.endpoints.grpc, "tandem_vllm", new_tokens, k)
            yield Case(f"vLLM, {name}", inside, served)


def _measure(name: str, case: Case, texts: list[str], repeats: int) -> list[tuple[float, float]]:
    """Pairs of tokens/s, by itself and through Triton, after one unmeasured pair."""
    pairs = []
    for _ in track(range(repeats + 1), description=name, console=Console(stderr=True)):
        speeds = []
        for side in case[1:]:
            time.sleep(REST_S)
            speeds.append(side(texts))
        pairs.append((speeds[0], speeds[1]))
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


def _through_triton(url: str, model: str, new_tokens: int, k: int, texts: list[str]) -> float:
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
    with grpc.insecure_channel(url) as channel, ThreadPoolExecutor(len(texts)) as pool:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        )
        grpc.channel_ready_future(channel).result()
        start = time.perf_counter()
        answers = list(pool.map(lambda request: list(call(iter([request]))), requests))
        seconds = time.perf_counter() - start
    for messages in answers:
        for message in messages:
            error = service_pb2.ModelStreamInferResponse.FromString(message).error_message
            if error:
                raise RuntimeError(error)
    return len(texts) * new_tokens / seconds


if __name__ == "__main__":
    typer.run(main)
