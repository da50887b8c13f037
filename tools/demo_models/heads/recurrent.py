"""EAGLE-3 and MTP: they guess from their own guesses, and learn as they will be used."""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig

from ..models import MAX_POSITIONS
from .layer import INNER, KeyValues, MidLayer, MtpLayer, norm
from .lessons import EARLY, Lesson, first_taught, last_taught, teacher_loss

OWN_VOCABULARY = 3072  # EAGLE-3's: a rate of guesses lost here is lost at every place of a draft


class Recurrent(Protocol):
    """A head whose hidden state, after the first step, is its own."""

    @property
    def own_ids(self) -> Tensor | None:
        """As in `teacher_loss`."""

    def begin(self, lesson: Lesson) -> Tensor: ...

    def step(self, hidden: Tensor, embedded: Tensor, earlier: KeyValues, start: int) -> Tensor: ...

    def logits(self, output: Tensor) -> Tensor: ...


def unrolled_losses(head: Recurrent, table: Tensor, lesson: Lesson, steps: int) -> list[Tensor]:
    """The loss of each step; index i stands for position i + step and reads the token behind it.

    Of the prompt only keys and values are wanted: outputs begin at the first index that is taught.
    """
    start, begin = first_taught(steps - 1), 0
    embedded = F.embedding(lesson.tokens, table)
    hidden, earlier, losses = head.begin(lesson), KeyValues(), list[Tensor]()
    for step in range(steps):
        end = last_taught(lesson, step)
        inputs = embedded[:, begin + step + 1 : end + step + 1]
        hidden = head.step(hidden[:, : end - begin], inputs, earlier, start)
        begin = start
        logits = head.logits(hidden[:, first_taught(step) - start :])
        losses.append(teacher_loss(logits, lesson, step, head.own_ids))
    return losses


class Eagle3(nn.Module):
    """The inputs of two of the target's layers and the output of its last one, each behind a norm
    (EAGLE-3.1); a head over the tokens that are written most."""

    def __init__(self, config: LlamaConfig, table: Tensor, texts: Tensor, scale: Tensor) -> None:
        """scale [hidden]: of the target's last norm."""
        super().__init__()
        size, count = config.hidden_size, len(EARLY) + 1
        self.taps = [*EARLY, config.num_hidden_layers]
        self.scale = scale
        self.fc_norm = nn.ModuleList(norm(config) for _ in range(count))
        self.fc = nn.Linear(count * size, size, bias=False)
        with torch.no_grad():  # begins with what the target's own head reads
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, -size:] += torch.eye(size)
        self.midlayer = MidLayer(config)
        self.midlayer.self_attn.look_at_oneself()
        self.norm = norm(config)
        counts = torch.bincount(texts.flatten(), minlength=config.vocab_size)
        self.known = counts.topk(OWN_VOCABULARY).indices.sort().values
        self.own_ids = torch.full((config.vocab_size,), -1)
        self.own_ids[self.known] = torch.arange(OWN_VOCABULARY)
        self.lm_head = nn.Linear(size, OWN_VOCABULARY, bias=False)
        self.lm_head.weight.data.copy_(table[self.known])
        self.table = table

    def losses(self, lesson: Lesson, steps: int) -> list[Tensor]:
        return unrolled_losses(self, self.table, lesson, steps)

    def begin(self, lesson: Lesson) -> Tensor:
        # Normed as it is, the last one loses its scale and is what a norm of its own would make.
        parts = [*lesson.early.chunk(len(EARLY), -1), lesson.last / self.scale]
        normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
        fused: Tensor = self.fc(torch.cat(normed, -1))
        return fused

    def step(self, hidden: Tensor, embedded: Tensor, earlier: KeyValues, start: int) -> Tensor:
        layer = self.midlayer
        both = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(hidden)], -1)
        return layer.finish(hidden, both, earlier, start)

    def logits(self, output: Tensor) -> Tensor:
        found: Tensor = self.lm_head(self.norm(output))
        return found

    def config(self) -> dict[str, Any]:
        """Its own entries of config.json."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_POSITIONS,
            "tie_word_embeddings": False,
            "intermediate_size": INNER,
            "draft_vocab_size": OWN_VOCABULARY,
            "fc_norm": True,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": self.taps},
        }

    def tensors(self) -> dict[str, Tensor]:
        """The published layout."""
        return dict(self.state_dict()) | {
            "d2t": self.known - torch.arange(OWN_VOCABULARY),
            "t2d": self.own_ids >= 0,
        }


class Mtp(nn.Module):
    """MiMo's module; the target's own embedding and head."""

    own_ids: Tensor | None = None

    def __init__(self, config: LlamaConfig, table: Tensor) -> None:
        super().__init__()
        size = config.hidden_size
        self.layer = MtpLayer(config)
        self.input_proj = nn.Linear(2 * size, size, bias=False)
        self.table = table

    def losses(self, lesson: Lesson, steps: int) -> list[Tensor]:
        return unrolled_losses(self, self.table, lesson, steps)

    def begin(self, lesson: Lesson) -> Tensor:
        return lesson.last

    def step(self, hidden: Tensor, embedded: Tensor, earlier: KeyValues, start: int) -> Tensor:
        layer = self.layer
        if not earlier:  # the first position's embedding is left out
            embedded = torch.cat([torch.zeros_like(embedded[:, :1]), embedded[:, 1:]], 1)
        both = torch.cat([layer.hidden_layernorm(hidden), layer.token_layernorm(embedded)], -1)
        x = self.input_proj(both)
        x = layer.finish(x, layer.input_layernorm(x), earlier, start)
        out: Tensor = layer.final_layernorm(x)
        return out

    def logits(self, output: Tensor) -> Tensor:
        return F.linear(output, self.table)

    def config(self) -> dict[str, Any]:
        """Its own entries of config.json."""
        return {
            "architectures": ["MiMoForCausalLM"],
            "intermediate_size": INNER,
            "num_nextn_predict_layers": 1,
        }

    def tensors(self) -> dict[str, Tensor]:
        """The published layout."""
        prefix = "model.mtp_layers.0."
        return {prefix + name.removeprefix("layer."): t for name, t in self.state_dict().items()}
