"""Our own engine, in-process."""

from __future__ import annotations

from importlib import metadata

from benchmarks.common import STORED_BITS
from benchmarks.peers.worker import Answer, Case, Generate, Prompts, serve
from tandem import Engine, EngineConfig, SamplingParams


def load(case: Case) -> Generate:
    """With its defaults: speculation adapts."""
    engine = Engine(
        EngineConfig(
            model=case.target,
            draft_model=case.draft or None,
            speculative_method=case.method,
            num_speculative_tokens=case.tokens or 1,
            max_num_seqs=case.most,
            num_threads=case.threads,
            enable_prefix_caching=False,
            suffix_decoding_max_cached_requests=0,  # or a repeat would remember its answer
            draft_weight_bits=STORED_BITS,
            kv_cache_memory="512MiB",
            devices="cpu",
        )
    )

    def generate(prompts: Prompts, new_tokens: int) -> Answer:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        outputs = engine.generate(prompts, params)
        stats = [output.stats for output in outputs]
        return Answer(
            [output.token_ids for output in outputs],
            sum(one.drafted for one in stats),
            sum(one.accepted for one in stats),
            sum(one.rounds for one in stats),
        )

    return generate


if __name__ == "__main__":
    serve(lambda: metadata.version("tandem"), load)
