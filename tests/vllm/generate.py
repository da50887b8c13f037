"""Run by vLLM's interpreter: one engine, some greedy texts. Reads a JSON object of arguments for
`LLM` from the command line; prints one with token ids and speculation counters."""

import json
import sys

from tandem.vllm import starts

PROMPTS = ["def main():", "import os", "class Stack:\n    def push", "for line in lines:"]


def main() -> None:
    """Generates and prints."""
    starts.import_ahead()
    from vllm import LLM, SamplingParams

    starts.fork_core()
    llm = LLM(
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=4,
        disable_log_stats=False,
        **json.loads(sys.argv[1]),
    )
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
    counters = {
        metric.name.removeprefix("vllm:spec_decode_num_"): metric.value
        for metric in llm.get_metrics()
        if metric.name.startswith("vllm:spec_decode_num_") and hasattr(metric, "value")
    }
    result = {"tokens": [output.outputs[0].token_ids for output in outputs], "counters": counters}
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
