"""Heads over the target's hidden states: Medusa, EAGLE-3, MTP and MLP speculator, in the layouts in
which they are published.

All four learn together, since the target's pass over a batch is what costs most. The ones that
guess from their own guesses are unrolled as they will be used (EAGLE-3's training-time test, arXiv
2503.01840): at step j the hidden state is their own, and attention sees the target's hidden states
up to where the draft began and the draft's own ones behind that.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from .generate import Rollouts
from .models import load_model
from .rollouts import PROMPT_TOKENS, rollout_batches
from .training import Plan, State, train

STEPS = 4  # drafted tokens that are trained for
TEMPERATURE = 0.7  # of the teacher, as for the draft
LATER_STEPS = 0.8  # weight of a step, relative to the one before
ROWS_A_STEP = 8
MLP_INNER = 256

console = Console()


class Attention(nn.Module):
    """Causal attention that can be unrolled; names are Llama's."""

    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = config.head_dim
        hidden = config.hidden_size
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, hidden, bias=False)
        self.theta = config.rope_parameters["rope_theta"]

    def forward(self, x: Tensor, earlier: list[tuple[Tensor, Tensor]]) -> Tensor:
        """x [rows, n, width] at step len(earlier); keeps its keys and values there."""
        step = len(earlier)
        query = self._rotated(self._split(self.q_proj(x), self.heads), step)
        shared = self.heads // self.kv_heads
        key = self._rotated(self._split(self.k_proj(x), self.kv_heads), step)
        value = self._split(self.v_proj(x), self.kv_heads)
        earlier.append((key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)))
        if step == 0:
            out = F.scaled_dot_product_attention(query, *earlier[0], is_causal=True)
        else:
            out = self._unrolled(query, earlier)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _unrolled(self, query: Tensor, earlier: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Step 0's keys up to the own index; of each later step the key at the own index."""
        scale, length = 1 / math.sqrt(self.size), query.shape[2]
        key, value = earlier[0]
        scores = query @ key[:, :, :length].transpose(2, 3) * scale
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        own = [(query * k[:, :, :length]).sum(-1, keepdim=True) * scale for k, _ in earlier[1:]]
        shares = torch.cat([scores.masked_fill(ahead, -torch.inf), *own], -1).softmax(-1)
        out = shares[..., :length] @ value[:, :, :length]
        for index, (_, later) in enumerate(earlier[1:]):
            out = out + shares[..., length + index, None] * later[:, :, :length]
        return out

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(2, (heads, self.size)).transpose(1, 2)

    def _rotated(self, x: Tensor, offset: int) -> Tensor:
        rates = self.theta ** -(torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(x.shape[2]) + offset, rates).repeat(1, 2)
        low, high = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-high, low], -1) * angles.sin()


class Mlp(nn.Module):
    """Gated, as Llama's."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def _norm(config: LlamaConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class Layer(nn.Module):
    """What both layers have, under Llama's names."""

    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, width)
        self.mlp = Mlp(config)
        self.input_layernorm = _norm(config)
        self.post_attention_layernorm = _norm(config)

    def finish(self, residual: Tensor, x: Tensor, earlier: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Attention over x and the MLP, on top of the residual."""
        x = residual + self.self_attn(x, earlier)
        return x + self.mlp(self.post_attention_layernorm(x))


class MidLayer(Layer):
    """EAGLE-3's: attention reads the normed embedding and the normed hidden state."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.hidden_norm = _norm(config)


class MtpLayer(Layer):
    """MiMo's."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.token_layernorm = _norm(config)
        self.hidden_layernorm = _norm(config)
        self.final_layernorm = _norm(config)


class Eagle3(nn.Module):
    """Inputs of three of the target's layers; a head over the whole vocabulary."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, depth = config.hidden_size, config.num_hidden_layers
        self.layers = (2, depth // 2, depth - 3)
        self.fc = nn.Linear(3 * size, size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = _norm(config)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)

    def begin(self, states: Sequence[Tensor]) -> Tensor:
        return self.fc(torch.cat([states[layer] for layer in self.layers], -1))

    def step(
        self, hidden: Tensor, embedded: Tensor, earlier: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """What logits are made from, and the next hidden state."""
        layer = self.midlayer
        both = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(hidden)], -1)
        x = layer.finish(hidden, both, earlier)
        return x, x

    def logits(self, output: Tensor) -> Tensor:
        return self.lm_head(self.norm(output))


class Mtp(nn.Module):
    """MiMo's module; the target's own head."""

    def __init__(self, config: LlamaConfig, head: Tensor) -> None:
        super().__init__()
        size = config.hidden_size
        self.layer = MtpLayer(config)
        self.input_proj = nn.Linear(2 * size, size, bias=False)
        self.head = head

    def begin(self, states: Sequence[Tensor]) -> Tensor:
        return states[-1]

    def step(
        self, hidden: Tensor, embedded: Tensor, earlier: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """What logits are made from, and the next hidden state."""
        layer = self.layer
        if not earlier:  # the first position's embedding is left out
            embedded = torch.cat([torch.zeros_like(embedded[:, :1]), embedded[:, 1:]], 1)
        both = torch.cat([layer.hidden_layernorm(hidden), layer.token_layernorm(embedded)], -1)
        x = self.input_proj(both)
        x = layer.final_layernorm(layer.finish(x, layer.input_layernorm(x), earlier))
        return x, x

    def logits(self, output: Tensor) -> Tensor:
        return F.linear(output, self.head)


class MedusaHead(nn.Module):
    """A residual block, the identity at first, and a head that begins as the target's."""

    def __init__(self, config: LlamaConfig, head: Tensor) -> None:
        super().__init__()
        self.block = nn.Linear(config.hidden_size, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.zeros_(self.block.weight)
        nn.init.zeros_(self.block.bias)
        self.head.weight.data.copy_(head)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.head(hidden + F.silu(self.block(hidden)))


class MlpSpeculator(nn.Module):
    """Stages with tied weights, but for the first projection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, vocab = config.hidden_size, config.vocab_size
        self.emb = nn.Embedding(vocab, MLP_INNER)
        self.first = nn.Linear(size, MLP_INNER, bias=False)
        self.proj = nn.Linear(MLP_INNER, MLP_INNER, bias=False)
        self.scale = nn.Parameter(torch.ones(MLP_INNER))
        self.shift = nn.Parameter(torch.zeros(MLP_INNER))
        self.head = nn.Linear(MLP_INNER, vocab, bias=False)
        state_weight = 0.5 ** (0.5 / STEPS)
        self.ratio = math.sqrt((1 - state_weight**2) * MLP_INNER / 2) / state_weight
        nn.init.normal_(self.emb.weight, std=1 / math.sqrt(MLP_INNER))

    def begin(self, states: Sequence[Tensor]) -> Tensor:
        return _rms(states[-1]) / math.sqrt(2)

    def step(self, state: Tensor, tokens: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Logits and the next state."""
        projected = (self.proj if step else self.first)(state)
        mixed = _rms(projected + self.ratio * self.emb(tokens))
        state = F.gelu(mixed * self.scale + self.shift)
        return self.head(state), state


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Heads(nn.Module):
    """All four, and their loss on a batch."""

    def __init__(self, target: LlamaForCausalLM) -> None:
        super().__init__()
        weight = target.get_input_embeddings().weight.detach()
        self.eagle3 = Eagle3(target.config)
        self.mtp = Mtp(target.config, weight)
        self.medusa = nn.ModuleList(MedusaHead(target.config, weight) for _ in range(STEPS))
        self.mlp = MlpSpeculator(target.config)
        self.eagle3.lm_head.weight.data.copy_(weight)

    def losses(self, target: LlamaForCausalLM, batch: Rollouts) -> dict[str, Tensor]:
        """Each head's mean loss, in nats a token above the teacher's likeliest ones."""
        with torch.no_grad():
            states = target.model(batch.tokens, output_hidden_states=True, use_cache=False)
            states = states.hidden_states
            embedded = target.get_input_embeddings()(batch.tokens)
        found = {"medusa": self._parallel(states[-1], batch), "mlp": self._recurrent(states, batch)}
        for name in ("eagle3", "mtp"):
            found[name] = self._unrolled(getattr(self, name), states, embedded, batch)
        return found

    def _unrolled(
        self, head: Any, states: Sequence[Tensor], embedded: Tensor, batch: Rollouts
    ) -> Tensor:
        hidden, earlier = head.begin(states), list[tuple[Tensor, Tensor]]()
        losses: list[Tensor] = []
        for step in range(STEPS):
            length = batch.tokens.shape[1] - 2 - step
            # Index i stands for position i + step; it reads token i + step + 1.
            inputs = embedded[:, step + 1 : step + 1 + length]
            output, hidden = head.step(hidden[:, :length], inputs, earlier)
            logits = head.logits(output[:, first_taught(step) :])
            losses.append(teacher_loss(logits, batch, step))
        return _weighted(losses)

    def _parallel(self, hidden: Tensor, batch: Rollouts) -> Tensor:
        losses: list[Tensor] = []
        for step, head in enumerate(self.medusa):
            length = batch.tokens.shape[1] - 2 - step
            taught = hidden[:, first_taught(step) : length]
            losses.append(teacher_loss(head(taught), batch, step))
        return _weighted(losses)

    def _recurrent(self, states: Sequence[Tensor], batch: Rollouts) -> Tensor:
        first = first_taught(STEPS - 1)
        state, losses = self.mlp.begin(states)[:, first:], list[Tensor]()
        for step in range(STEPS):
            length = batch.tokens.shape[1] - 2 - step - first
            tokens = batch.tokens[:, first + step + 1 : first + step + 1 + length]
            logits, state = self.mlp.step(state[:, :length], tokens, step)
            losses.append(teacher_loss(logits[:, first_taught(step) - first :], batch, step))
        return _weighted(losses)


def first_taught(step: int) -> int:
    """The first index whose guess at a step is of the target's own text, not of the prompt."""
    return PROMPT_TOKENS - 2 - step


def teacher_loss(logits: Tensor, batch: Rollouts, step: int) -> Tensor:
    """Cross-entropy to the target's sharpened likeliest tokens.

    logits [rows, n, V] are those of the indices from first_taught(step) on; index i guesses what
    follows position i + step + 1.
    """
    start = first_taught(step) + step + 1
    end = start + logits.shape[1]
    chosen = batch.top_ids[:, start:end].long()
    teacher = F.softmax(batch.top_logits[:, start:end].float() / TEMPERATURE, -1)
    own = logits.float()
    return (own.logsumexp(-1) - (teacher * own.gather(-1, chosen)).sum(-1)).mean()


def _weighted(losses: Sequence[Tensor]) -> Tensor:
    weights = [LATER_STEPS**step for step in range(len(losses))]
    total = torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum()
    return total / sum(weights)


def train_heads(target: Path, rollouts: Rollouts, out: Path, budget_s: float, seed: int) -> None:
    """Trains all heads on rollout files and writes a folder for each into `out`."""
    torch.manual_seed(seed)
    teacher = load_model(target)
    teacher.requires_grad_(requires_grad=False)
    heads = Heads(teacher)
    batches = rollout_batches(rollouts, ROWS_A_STEP, torch.Generator().manual_seed(seed))
    parts: dict[str, float] = {}

    def loss_at(fraction: float) -> Tensor:
        losses = heads.losses(teacher, next(batches))
        parts.update({name: round(loss.item(), 3) for name, loss in losses.items()})
        return torch.stack(list(losses.values())).sum()

    def checkpoint(state: State) -> None:
        console.print(f"{state.seconds:.0f} s, {state.steps} steps, {parts}")
        save_heads(heads, teacher.config, out)

    train(heads, loss_at, Plan(budget_s, checkpoint_s=budget_s / 10), checkpoint)


def save_heads(heads: Heads, config: LlamaConfig, out: Path) -> None:
    """Each head in its published layout, bf16."""
    shape = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
    }
    eagle = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": config.vocab_size,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(heads.eagle3.layers)},
    }
    _save(out / "eagle3", shape | eagle, heads.eagle3.state_dict())
    names = {"layer.": "model.mtp_layers.0.", "input_proj.": "model.mtp_layers.0.input_proj."}
    mtp = {
        _renamed(name, names): tensor
        for name, tensor in heads.mtp.state_dict().items()
        if name != "head"
    }
    own = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    _save(out / "mtp", shape | own, mtp)
    layout = {"block.": "0.linear.", "head.": "1."}
    medusa = {
        f"{index}.{_renamed(name, layout)}": tensor
        for index, head in enumerate(heads.medusa)
        for name, tensor in head.state_dict().items()
    }
    _save(out / "medusa", {"medusa_num_heads": STEPS, "medusa_num_layers": 1}, medusa)
    _save(out / "mlp_speculator", _mlp_config(config), _mlp_tensors(heads.mlp))


def _mlp_config(config: LlamaConfig) -> dict[str, Any]:
    return {
        "model_type": "mlp_speculator",
        "vocab_size": config.vocab_size,
        "emb_dim": config.hidden_size,
        "inner_dim": MLP_INNER,
        "n_predict": STEPS,
        "tie_weights": True,
        "scale_input": True,
    }


def _mlp_tensors(mlp: MlpSpeculator) -> dict[str, Tensor]:
    return {
        "speculator.emb.0.weight": mlp.emb.weight,
        "speculator.proj.0.weight": mlp.first.weight,
        "speculator.proj.1.weight": mlp.proj.weight,
        "speculator.ln.0.weight": mlp.scale,
        "speculator.ln.0.bias": mlp.shift,
        "speculator.head.0.weight": mlp.head.weight,
    }


def _renamed(name: str, prefixes: dict[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    kept = {name: t.detach().to(torch.bfloat16).contiguous() for name, t in tensors.items()}
    save_file(kept, folder / "model.safetensors")
