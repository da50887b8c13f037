"""Two small tokenizers whose characters span tokens, and requests written out over them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from tandem import RequestOutput, SamplingParams
from tandem.drafting import Verdict
from tandem.metrics import Meters
from tandem.output import OutputStream
from tandem.request import Request, TokenLogprobs
from tandem.tokenizer import Tokenizer

EOS = "</s>"
CORPUS = [
    "the cat and the dog",
    "naïve café — “déjà vu”",
    "数据 和 模型",
    "stop here and stop there",
]


@cache
def byte_level() -> Tokenizer:
    """GPT-2's kind (Llama 3, Qwen): every token is a run of bytes."""
    tokenizer = HFTokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=[EOS], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return load(tokenizer)


@cache
def byte_fallback() -> Tokenizer:
    """SentencePiece's kind (Llama 2, Mistral): known characters, bytes for all others."""
    pieces = ["<unk>", EOS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehnopst"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    model = BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True)
    tokenizer = HFTokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([EOS])
    return load(tokenizer)


def load(tokenizer: HFTokenizer) -> Tokenizer:
    """The engine's wrapper around it."""
    with TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        return Tokenizer(Path(folder))


def eos_of(tokenizer: Tokenizer) -> int:
    special = b"\0" + EOS.encode()
    return next(index for index, text in tokenizer.spellings().items() if text == special)


def chunks(tokens: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """`tokens` cut into runs of `sizes`, the last size repeated as often as needed."""
    runs: list[list[int]] = []
    rest, sizes = list(tokens), list(sizes)
    while rest:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        runs.append(rest[:size])
        rest = rest[size:]
    return runs


def write(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    params: SamplingParams,
    sizes: Sequence[int] = (1,),
    prompt: str = "a prompt",
    stop_ids: Sequence[int] = (),
) -> list[RequestOutput]:
    """Outputs of a request for which runs of `sizes` tokens are verified, until it ends."""
    start = tokenizer.encode(prompt)
    most = params.max_tokens if params.max_tokens is not None else 10_000
    request = Request(
        id="r",
        tokens=start,
        num_prompt=len(start),
        params=params,
        seed=None,
        max_total=len(start) + most,
        stop_ids=frozenset(stop_ids) | frozenset(params.stop_token_ids),
    )
    stream = OutputStream(request, tokenizer, Meters())
    outputs: list[RequestOutput] = []
    for run in chunks(tokens, sizes):
        verdict = Verdict(list(range(1, len(run))), run)
        outputs.append(stream.append(verdict, [logprob(token) for token in run]))
        if outputs[-1].finished:
            break
    return outputs


def logprob(token: int) -> TokenLogprobs:
    """An entry that says -1."""
    return TokenLogprobs(token, {token: (-1.0, 1, "")})


def text_of(outputs: Sequence[RequestOutput]) -> str:
    return "".join(output.text for output in outputs)


def tokens_of(outputs: Sequence[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]
