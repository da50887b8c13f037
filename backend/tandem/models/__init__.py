"""Decoders and what reads their checkpoints. Nothing here knows scheduling or parallelism."""
