"""Runners: a model with its KV cache, on its devices."""
