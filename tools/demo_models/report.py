"""The figures of a finished pair, and what its target writes."""

from pathlib import Path

import torch
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from .corpus import read_corpus
from .data import encode_documents, sequential_rows
from .generate import generate
from .measure import acceptance, cross_entropy
from .models import load_model, load_tokenizer, parameter_count
from .prompts import cut_prompts
from .rollouts import LONGEST_DRAFT, MEASURED_TOKENS, PROMPT_TOKENS, greedy_texts

console = Console(soft_wrap=True, highlight=False, markup=False)


def report_pair(target: Path, draft: Path, prompts: int, seed: int) -> None:
    """Prints sizes, held-out losses, and the acceptance on `prompts` held-out prompts."""
    tokenizer, documents = load_tokenizer(target), read_corpus().held_out
    models = {"target": load_model(target), "draft": load_model(draft)}
    held_out = sequential_rows(encode_documents(tokenizer, documents), 512)
    for name, folder in (("target", target), ("draft", draft)):
        megabytes = (folder / "model.safetensors").stat().st_size / 1e6
        loss = cross_entropy(models[name], held_out)
        count = parameter_count(models[name])
        console.print(f"{name}: {count:,} parameters, {megabytes:.1f} MB, {loss:.3f} nats a token")
    texts = greedy_texts(target, tokenizer, documents, prompts, seed)
    for k in (1, 2, 4, LONGEST_DRAFT):
        _report_acceptance(models["draft"], texts, k)


def show_completions(target: Path, count: int, temperature: float, seed: int) -> None:
    """Prints continuations of held-out prompts, 96 tokens each, after the prompt's last line."""
    tokenizer = load_tokenizer(target)
    prompts = cut_prompts(tokenizer, read_corpus().held_out, count, PROMPT_TOKENS, seed)
    for row in generate(target, prompts, 96, torch.full((count,), temperature)):
        console.print(_marked(tokenizer, row), end="\n" + "=" * 80 + "\n")


def _report_acceptance(draft: LlamaForCausalLM, texts: Tensor, k: int) -> None:
    counts = acceptance(draft, texts, PROMPT_TOKENS, MEASURED_TOKENS, k)
    console.print(
        f"k={k}: accepted {counts.accepted} of {counts.drafted} drafted tokens, "
        f"{counts.rate:.3f}; {counts.tokens_a_round:.2f} tokens a round"
    )


def _marked(tokenizer: Tokenizer, row: Tensor) -> str:
    prompt, new = row[:PROMPT_TOKENS].tolist(), row[PROMPT_TOKENS:].tolist()
    return tokenizer.decode(prompt)[-200:] + "▶" + tokenizer.decode(new)
