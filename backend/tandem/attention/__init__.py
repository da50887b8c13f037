"""Attention over the paged KV cache: one plan a step, one call a layer."""
