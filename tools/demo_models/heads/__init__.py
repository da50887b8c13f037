"""Heads over the target's hidden states, in the layouts in which they are published."""
