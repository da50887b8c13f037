"""What Triton costs: tokens/s of the engine in-process and through a real tritonserver.

The same prompts, in turns, at batch 1 and 8: `python -m benchmarks.serving` prints the ratio and
writes benchmarks/results/serving.json. The idle side waits without spinning.
"""

from __future__ import annotations

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import grpc
import typer
from tritonclient.grpc import service_pb2

from benchmarks.common import MODELS, ROOT, machine, prompts, save, show
from tandem import Engine, EngineConfig, SamplingParams
from tandem.serving import ServerOptions, TritonServer
from tandem_client.wire import to_proto

BATCHES = (1, 8)


def main(
    new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 256,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 7,
) -> None:
    """Measures and reports."""
    texts = prompts("heldout", max(BATCHES))
    config = EngineConfig(model=MODELS / "target", draft_model=MODELS / "draft")
    options = ServerOptions(ROOT / "model_repository", ("tandem",))
    result: dict[str, object] = {"machine": machine(), "new_tokens": new_tokens}
    rows = []
    with TritonServer(options) as server, Engine(config) as engine:
        for batch in BATCHES:
            for k in (0, config.lookahead):
                pair = _measure(
                    engine, server.endpoints.grpc, texts[:batch], new_tokens, k, repeats
                )
                inside, served = (statistics.median(speeds) for speeds in zip(*pair, strict=True))
                ratio = statistics.median(b / a for a, b in pair)
                name = f"batch {batch}, {f'draft model k={k}' if k else 'plain'}"
                rows.append((name, f"{inside:.0f}", f"{served:.0f}", f"{ratio:.0%}"))
                result[name] = {"in_process": inside, "triton": served, "ratio": ratio}
    show("tokens/s of all requests together", ["", "in-process", "Triton, gRPC", "ratio"], rows)
    save("serving", result)


def _measure(
    engine: Engine, url: str, texts: list[str], new_tokens: int, k: int, repeats: int
) -> list[tuple[float, float]]:
    """Pairs of tokens/s, in-process and through Triton, after one unmeasured pair."""
    pairs = []
    for _ in range(repeats + 1):
        inside = _in_process(engine, texts, new_tokens, k)
        pairs.append((inside, _through_triton(url, texts, new_tokens, k)))
    return pairs[1:]


def _in_process(engine: Engine, texts: list[str], new_tokens: int, k: int) -> float:
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


def _through_triton(url: str, texts: list[str], new_tokens: int, k: int) -> float:
    """One stream a prompt, all at once, by a client that costs as little as a client can: it
    shares the cores with what it measures. It keeps the raw messages and reads them afterwards."""
    sampling = {"temperature": 0, "max_tokens": new_tokens, "ignore_eos": True}
    requests = [
        to_proto(
            "tandem",
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
