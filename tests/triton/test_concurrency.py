"""Many requests of all kinds at the same time, each with its own answer."""

import asyncio

from tandem_client import (
    AsyncGrpcClient,
    AsyncHttpClient,
    InvalidArgument,
)
from tests.triton.conftest import PROMPT
from tests.triton.protocol import WAIT

# Prompts of different lengths and texts, so that a mix-up shows.
PROMPTS = [PROMPT, "import os\n", "class Parser:\n    def __init__(self", "x = [1, 2, 3]\n" * 8]
SAMPLED = {"temperature": 0.9, "seed": 5, "max_tokens": 40, "ignore_eos": True}
GREEDY = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}


async def leave_early(client, prompt):
    async for chunk in client.stream(prompt, GREEDY | {"max_tokens": 1000}):
        return chunk


def test_sixteen_mixed_streams(urls):
    async def run():
        async with AsyncGrpcClient(urls.grpc) as grpc, AsyncHttpClient(urls.http) as http:
            kinds = [(prompt, params) for prompt in PROMPTS for params in (GREEDY, SAMPLED)]
            alone = [await grpc.generate(prompt, params) for prompt, params in kinds]
            mixed = [grpc.generate(prompt, params) for prompt, params in kinds[:4]]
            mixed += [http.generate(prompt, params) for prompt, params in kinds[4:]]
            others = [leave_early(client, PROMPT) for client in (grpc, http, grpc, http)]
            bad = [client.generate(PROMPT, max_tokens=0) for client in (grpc, http, grpc, http)]
            answers = await asyncio.gather(*mixed, *others, *bad, return_exceptions=True)
            return alone, answers

    alone, answers = asyncio.run(asyncio.wait_for(run(), WAIT))
    assert len(answers) == 16
    assert [answer.token_ids for answer in answers[:8]] == [one.token_ids for one in alone]
    assert [answer.text for answer in answers[:8]] == [one.text for one in alone]
    assert all(chunk.token_ids for chunk in answers[8:12])
    assert all(isinstance(error, InvalidArgument) for error in answers[12:])
