"""From logits to tokens: processed distributions, noise, and lossless verification."""
