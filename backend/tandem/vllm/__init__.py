"""The engine `vllm` and what it adds to vLLM. Only its own environment imports vLLM."""
