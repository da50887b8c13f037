"""A simulated target, drafts and clock: what a policy is worth, exactly and without waiting."""

import itertools
import random

from tandem.drafting import Draft, Proposer, Verdict
from tandem.drafting.choosing import Method
from tandem.drafting.confidence import Confidence
from tandem.drafting.costs import RoundCosts
from tandem.drafting.mixture import MixtureProposer
from tandem.drafting.times import PROFILED
from tandem.scheduler import Decode
from tandem.verification.judging import RANDOM
from tests.engine.builders import make_request

RIGHT = 1
WRONG = 0
LONGEST = 8  # tokens of a draft
SURE, UNSURE = 0.98, 0.3  # chances of a token that a draft which says so is sure of, or not


class World:
    """A target whose pass takes 1 second and a little for each further row."""

    def __init__(self, row_s=0.01, between_s=0.0):
        """between_s: that each round takes besides its pass and its draft."""
        self.row_s = row_s
        self.between_s = between_s
        self.now = 0.0
        self.random = random.Random(3)

    def clock(self):
        return self.now

    def pass_s(self, rows):
        return 1 + self.row_s * (rows - 1)

    def costs(self):
        """As a profile finds them."""
        return RoundCosts({rows: self.pass_s(rows) for rows in PROFILED})

    def rate(self, batch, length, chance, found=1.0, level_s=0.0):
        """Expected tokens a second and request of one method with drafts of a fixed length."""
        tokens = 1 + found * sum(chance**place for place in range(1, length + 1))
        pass_s = self.pass_s(batch * (1 + found * length))
        return tokens / (pass_s + level_s * length + self.between_s)

    def run(self, proposer, batch, longest, rounds, requests=None):
        """Tokens a second and request. A drafted RIGHT is what the target writes."""
        requests = requests or [make_request([1, 2]) for _ in range(batch)]
        begin, tokens = self.now, 0
        for _ in range(rounds):
            room = longest if proposer.may_draft else 0
            decodes = [Decode(request, room) for request in requests]
            draft = proposer.propose(decodes, alone=True)
            rows = sum(1 + len(one) for one in draft.tokens)
            if (meanwhile := proposer.meanwhile) is not None:
                meanwhile()
            self.now += self.pass_s(rows)
            proposer.passed(rows, self.pass_s(rows))
            kept = [[*drafted, WRONG].index(WRONG) for drafted in draft.tokens]
            verdicts = [Verdict(list(range(1, n + 1)), [RIGHT] * (n + 1)) for n in kept]
            proposer.observe(decodes, draft, verdicts)
            tokens += sum(kept) + batch
            self.now += self.between_s
        return tokens / (self.now - begin) / batch


class Guess(Proposer):
    """Each token is right by chance; with a level's cost it is a model, otherwise a lookup."""

    def __init__(self, world, chance, found=1.0, level_s=0.0, sure=False):
        """sure: of each token it knows whether it is right for sure or by a small chance, and says
        that of both by odd shares."""
        self.confidence = Confidence() if sure else None
        self.world = world
        self.chance = chance
        self.found = found
        self.level_s = level_s
        self.asked = 0

    def propose(self, decodes, alone=False):
        asked = [decode.lookahead for decode in decodes]
        self.asked += any(asked)
        if self.confidence is not None and self.confidence.gate is not None:
            chains = [self._chain(count, self.confidence.gate.least) for count in asked]
            self.world.now += self.level_s * max(len(sure) for _, sure in chains)
            return Draft([tokens for tokens, _ in chains], sure=[sure for _, sure in chains])
        self.world.now += self.level_s * max(asked)
        return Draft([self._draft(count) for count in asked])

    def _chain(self, count, least):
        """As the kernels draw it."""
        tokens, sure, reach = [], [], 1.0
        unsure = (SURE - self.chance) / (SURE - UNSURE)
        for _ in range(count):
            is_unsure = self.world.random.random() < unsure
            chance, share = (UNSURE, 0.6) if is_unsure else (SURE, 0.8)
            sure.append(share)
            reach *= self.confidence.chance(RANDOM, share)
            if reach < least:
                break
            tokens.append(RIGHT if self.world.random.random() < chance else WRONG)
        return tokens, sure

    def _draft(self, count):
        if self.world.random.random() >= self.found:
            return []
        return [RIGHT if self.world.random.random() < self.chance else WRONG for _ in range(count)]


def always_pays(engine):
    """Rows and drafts seem to cost nothing, so that the engine's mixture drafts what it can."""
    return _by_clock(engine, lambda: 0.0, dearest=1.0)


def by_whim(engine, seed):
    """Costs and pauses are drawn, and whether a head's states are kept, so that the engine's
    mixture decides one way and another."""
    draws = random.Random(seed)
    times = itertools.accumulate(draws.choice([0.1, 1.0, 3.0]) for _ in itertools.count())
    _by_clock(engine, lambda: next(times), dearest=10 ** draws.uniform(0, 5))
    runs = itertools.cycle([False, True])
    pauses = (pausing for pausing in runs for _ in range(draws.choice([1, 2, 12])))
    engine.proposer.lookups.pauses.due = lambda *_: next(pauses)
    if engine.proposer.model is not None:
        spares_by_whim(engine, draws)
    return engine


def spares_by_whim(engine, draws):
    """Whether a head's states are kept is drawn: mostly they are, but for a few rounds."""
    sparing = engine.proposer._drafter.sparing
    runs = itertools.cycle([(False, [5, 20, 40]), (True, [1, 2, 12])])
    drawn = (spares for spares, lengths in runs for _ in range(draws.choice(lengths)))

    def look(*_):
        sparing.spares = next(drawn)

    sparing.look = look


def _by_clock(engine, clock, dearest):
    costs = RoundCosts({1: 1.0, 4096: dearest})
    mixture = engine.proposer
    mixture.costs = mixture.planner.chooser._costs = mixture.watch.costs = costs
    mixture.watch.clock = clock
    mixture.lookups.pauses.due = lambda *_: False
    passed = mixture.passed

    def by_clock(rows, seconds):
        began = clock()
        passed(rows, clock() - began)

    mixture.passed = by_clock
    return engine


def of_a_model(world, model):
    """A mixture of one model."""
    return MixtureProposer(
        [Method("model", model, False)], LONGEST, world.costs(), clock=world.clock
    )
