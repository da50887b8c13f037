"""Guessers that read the target's hidden states: a file a published format."""
