"""The tokenizer: byte-level BPE; a line break and the indentation after it are one piece."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0  # special tokens are numbered first
# Reserved so that a later fine-tune (chat, fill in the middle) needs no new rows in the embedding.
SPECIAL_TOKENS = (END_OF_TEXT, "<|reserved_0|>", "<|reserved_1|>", "<|reserved_2|>")

# A line break (or several) with the next line's indentation; a name, with the space before it; one
# digit; a run of punctuation, with the space before it; white space, less the space that belongs to
# what follows. Every character matches some branch, so that nothing is lost.
_PIECES = (
    r"[\r\n]+[ \t]*(?:[\r\n]+[ \t]*)*"
    r"| ?[\p{L}\p{M}_]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}_]+"
    r"|[^\S\r\n]+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learns the merges from `texts`; `decode(encode(text))` is `text`, whatever it is."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json as transformers' AutoTokenizer reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )
