"""Measurements: each is one command, interleaves what it compares, and prints ratios."""
