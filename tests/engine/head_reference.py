"""What each published head guesses, from its formula, in plain torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tandem.drafting.heads.checkpoint import read_head
from tests.engine.heads import HEADS, HIDDEN, KV_HEADS, LAYER_IDS, METHODS, ROPE, VOCAB
from tests.engine.references import hf_model

GUESSES = 3  # behind each text


class Reference:
    """What each head guesses behind a text, from the formulas, without a cache."""

    def __init__(self, target, head, method):
        self.model = hf_model(target)
        self.head = read_head(head)
        self.t = self.head.tensors
        self.method = method

    @torch.inference_mode()
    def first(self, text):
        """Logits of the token behind the text and of those behind the likeliest guesses."""
        states = self.states(text[:-1])
        if self.method == "medusa":
            return self.medusa(states[-1][0, -1])
        if METHODS[self.method] == "mlp_speculator":
            return self.mlp(states[-1][0, -1], text[-1])
        if METHODS[self.method] == "eagle3":
            taps = [states[layer][0] for layer in LAYER_IDS[self.method]]
            features = self.fuse(torch.cat(taps, -1))
        else:
            features = states[-1][0]
        tokens = torch.tensor(text[1:])
        if self.method == "mtp3":
            return self.modules(features, tokens)
        output, recurrent = self.layer(features, tokens)
        found = [self.logits(output[-1])]
        while len(found) < GUESSES:
            after, token = recurrent[-1:], found[-1].argmax()[None]
            if self.method == "peagle":
                after, token = self.fuse(self.t["mask_hidden"][0]), torch.tensor([VOCAB])
            features, tokens = torch.cat([features, after]), torch.cat([tokens, token])
            output, recurrent = self.layer(features, tokens)
            found.append(self.logits(output[-1]))
        return found

    def states(self, tokens):
        """The input of each layer, the last layer's output, and the same behind the norm."""
        given = []
        norm = self.model.model.norm
        hook = norm.register_forward_hook(lambda module, inputs, out: given.append(inputs[0]))
        states = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        hook.remove()
        return [*states[:-1], given[0], states[-1]]

    def fuse(self, features):
        if self.method == "peagle":
            features = self.norm("input_norm", features)
        if self.method == "eagle31":
            taps = features.split(HIDDEN, -1)
            normed = [self.norm(f"fc_norm.{index}", tap) for index, tap in enumerate(taps)]
            features = torch.cat(normed, -1)
        return features @ self.t["fc.weight"].T

    def modules(self, hidden, tokens):
        """Each reads what the one before made of the row before, and the token guessed last."""
        found = []
        for module in range(GUESSES):
            output = self.mtp(f"model.mtp_layers.{module}", hidden, tokens)
            found.append(self.logits(output[-1]))
            tokens = torch.cat([tokens, found[-1].argmax()[None]])
            hidden = torch.cat([torch.zeros(1, HIDDEN), output])
        return found

    def mtp(self, prefix, hidden, tokens):
        embedded = self.model.model.embed_tokens.weight[tokens].clone()
        embedded[0] = 0
        both = self.norm(f"{prefix}.hidden_layernorm", hidden)
        both = torch.cat([both, self.norm(f"{prefix}.token_layernorm", embedded)], -1)
        x = both @ self.t[f"{prefix}.input_proj.weight"].T
        x = self.decoder(prefix, x, self.norm(f"{prefix}.input_layernorm", x))
        return self.norm(f"{prefix}.final_layernorm", x)

    def medusa(self, hidden):
        def logits(head):
            block = self.t[f"{head}.0.linear.weight"], self.t[f"{head}.0.linear.bias"]
            return (hidden + F.silu(F.linear(hidden, *block))) @ self.t[f"{head}.1.weight"].T

        return [logits(head) for head in range(GUESSES)]

    def mlp(self, hidden, token):
        def norm(x):
            return x / (x.pow(2).mean() + 1e-6).sqrt()

        state_weight, inner, found = 0.5 ** (0.5 / 3), 32, []
        ratio = math.sqrt((1 - state_weight**2) * inner / 2) / state_weight
        state = norm(hidden) / math.sqrt(2)
        for stage in range(GUESSES):
            at = {"emb": stage, "proj": stage, "head": stage, "ln": stage}
            if self.method == "mlp_tied":
                at = {"emb": 0, "proj": min(stage, 1), "head": 0, "ln": 0}
            part = {kind: self.t[f"speculator.{kind}.{of}.weight"] for kind, of in at.items()}
            mixed = part["proj"] @ state + ratio * part["emb"][token]
            state = F.gelu(norm(mixed) * part["ln"] + self.t[f"speculator.ln.{at['ln']}.bias"])
            found.append(part["head"] @ state)
            token = int(found[-1].argmax())
        return found

    def norm(self, name, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.t[f"{name}.weight"]

    def layer(self, hidden, tokens):
        own = self.t.get("embed_tokens.weight", self.model.model.embed_tokens.weight)
        embedded = own[tokens].clone()
        if self.method == "eagle":
            x = F.linear(torch.cat([embedded, hidden], -1), self.t["fc.weight"], self.t["fc.bias"])
            out = self.decoder("layers.0", x, x)
            return out, out
        if self.method == "mtp":
            out = self.mtp("model.mtp_layers.0", hidden, tokens)
            return out, out
        name = "layers.0" if self.method == "peagle" else "midlayer"
        normed = self.norm(f"{name}.hidden_norm", hidden)
        both = torch.cat([self.norm(f"{name}.input_layernorm", embedded), normed], -1)
        x = self.decoder(name, normed if self.method == "peagle" else hidden, both)
        if self.method == "peagle":
            x = self.decoder("layers.1", x, self.norm("layers.1.input_layernorm", x))
        return self.norm("norm", x), self.norm("norm", x) if self.method == "eagle31" else x

    def decoder(self, prefix, residual, x):
        """Plain causal attention and MLP."""

        def project(name, heads):
            bias = self.t.get(f"{prefix}.self_attn.{name}_proj.bias")
            out = F.linear(x, self.t[f"{prefix}.self_attn.{name}_proj.weight"], bias)
            return out.view(len(x), heads, -1).transpose(0, 1)

        q, k, v = project("q", HEADS), project("k", KV_HEADS), project("v", KV_HEADS)
        size = HIDDEN // HEADS
        rates = (ROPE if self.method == "peagle" else 10000.0) ** -(torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(len(x)), rates)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

        def rotate(y):
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat([-b, a], -1) * sin

        k, v = (y.repeat_interleave(HEADS // KV_HEADS, 0) for y in (rotate(k), v))
        scores = rotate(q) @ k.transpose(1, 2) / math.sqrt(size)
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        x = residual + mixed @ self.t[f"{prefix}.self_attn.o_proj.weight"].T
        y = self.norm(f"{prefix}.post_attention_layernorm", x)
        gate = F.silu(y @ self.t[f"{prefix}.mlp.gate_proj.weight"].T)
        up = y @ self.t[f"{prefix}.mlp.up_proj.weight"].T
        return x + (gate * up) @ self.t[f"{prefix}.mlp.down_proj.weight"].T

    def logits(self, output):
        if METHODS[self.method] != "eagle3":
            return output @ self.model.lm_head.weight.T
        own = self.t["lm_head.weight"] @ output
        ids = torch.arange(len(own)) + self.t["d2t"]
        return torch.full([VOCAB], -math.inf).index_copy(0, ids, own)
