"""Rule three of acceptance, worked out: each text is as likely as by the target, exactly."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from tandem.drafting import Draft
from tandem.verification.verify import _judge_blocks

VOCAB, LENGTH = 3, 3
NEVER = 2.0  # a draw that keeps nothing


class Model:
    """Probabilities of the next token behind each text."""

    def __init__(self, seed, sharpness):
        generator = torch.Generator().manual_seed(seed)
        texts = [text for size in range(LENGTH + 1) for text in product(range(VOCAB), repeat=size)]
        logits = sharpness * torch.randn(len(texts), VOCAB, generator=generator).double()
        self.next = dict(zip(texts, logits.softmax(-1), strict=True))

    def chance(self, text, behind=0):
        """Of what the text has from there on."""
        found = 1.0
        for at in range(behind, len(text)):
            found *= float(self.next[text[:at]][text[at]])
        return found


def judged(target, draft, chain, draws):
    """Tokens of a chain that are kept by these draws, and what each place's token is drawn from."""
    scored = torch.stack([target.next[chain[:at]] for at in range(LENGTH + 1)]).log()
    q = torch.stack([draft.next[chain[:at]] for at in range(LENGTH)])[None]
    sampler = SimpleNamespace(uniform=lambda count: torch.tensor(draws).double()[:count])
    scores, kept = _judge_blocks(scored, Draft([list(chain)], q=q), [True], sampler)
    return sum(kept), scores.softmax(-1)


def chance_of(target, draft, chain, count):
    """That so many are kept, where no more are: the largest draw by which they are."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        draws = [NEVER] * LENGTH
        draws[count - 1] = middle
        kept, _ = judged(target, draft, chain, draws)
        low, high = (middle, high) if kept == count else (low, middle)
    return low


def outcomes(target, draft, chain):
    """What is kept of a chain, with its chance, and the next token's probabilities."""
    _, following = judged(target, draft, chain, [NEVER] * LENGTH)
    left = 1.0
    for count in range(LENGTH, 0, -1):
        chance = chance_of(target, draft, chain, count)
        yield chain[:count], left * chance, following[count]
        left *= 1 - chance
    yield (), left, following[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sharpness", [0.5, 2.0])
def test_texts_are_distributed_as_the_target_says(seed, sharpness):
    target, draft = Model(seed, sharpness), Model(seed + 100, sharpness)
    found = dict.fromkeys(product(range(VOCAB), repeat=LENGTH + 1), 0.0)
    for chain in product(range(VOCAB), repeat=LENGTH):
        drafted = draft.chance(chain)
        for kept, chance, following in outcomes(target, draft, chain):
            for text in found:
                if text[: len(kept)] == kept:
                    own = float(following[text[len(kept)]])
                    rest = target.chance(text, len(kept) + 1)
                    found[text] += drafted * chance * own * rest
    for text, probability in found.items():
        assert probability == pytest.approx(target.chance(text), abs=1e-7), text
