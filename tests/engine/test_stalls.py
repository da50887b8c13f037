"""Something else takes the processor for long while an engine begins to learn what rounds take: it
must not believe for ever that drafts take so long, or it would never draft again."""

import pytest

from tests.engine.policy_world import LONGEST, Guess, World, of_a_model

STALL_S = 300.0  # as long as 300 passes
DRAFTS = [(1,), (2,), (3,), (8,), range(1, 10)]
"""During these, or behind them."""


class Stalled(Guess):
    """A model."""

    def __init__(self, world, chance, during, at):
        super().__init__(world, chance, level_s=0.05)
        self.during = during
        self.at = at
        self.drafts = 0

    def propose(self, decodes, alone=False):
        draft = super().propose(decodes, alone)
        self.drafts += any(draft.tokens)
        self._stall(draft, "its draft")
        return draft

    def observe(self, decodes, draft, verdicts):
        self._stall(draft, "what is beside")

    def _stall(self, draft, now):
        if any(draft.tokens) and now == self.during and self.drafts in self.at:
            self.world.now += STALL_S


@pytest.mark.parametrize("at", DRAFTS, ids=str)
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("during", ["its draft", "what is beside"])
@pytest.mark.parametrize("plain_first", [True, False])
@pytest.mark.parametrize("chance", [0.5, 0.9])
def test_what_was_disturbed_at_first_is_not_believed_for_ever(
    at, batch, during, plain_first, chance
):
    world = World(between_s=0.02)
    mixture = of_a_model(world, Stalled(world, chance, during, at))
    if plain_first:
        world.run(mixture, batch, 0, 20)
    world.run(mixture, batch, LONGEST, 40)
    world.run(mixture, batch, 0, 20)  # what plain rounds take is known now
    world.run(mixture, batch, LONGEST, 400)
    best = max(world.rate(batch, length, chance, level_s=0.05) for length in range(LONGEST + 1))
    assert world.run(mixture, batch, LONGEST, 300) > 0.9 * best
