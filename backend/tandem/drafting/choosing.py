"""Which method should draft for a request, and how far each draft of a round should reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandem.drafting import Proposer
from tandem.drafting.asking import Further
from tandem.drafting.between import averaged
from tandem.drafting.costs import Load, RoundCosts
from tandem.drafting.gains import LEAST, Gains, Records
from tandem.drafting.lengths import (
    Option,
    Outlook,
    Plan,
    best_lengths,
    of_one,
    outlook,
    tokens_share,
    with_finds,
)
from tandem.drafting.reading import NEVER, Reading
from tandem.drafting.remembered import (
    PLANNED_FOR,
    Choice,
    Judged,
    Known,
    about,
    alike,
    held,
)
from tandem.request import Request
from tandem.scheduler import Decode

# Times the rate of others, and of none, that a model must promise: the best of several estimates is
# on average too good, planning takes time too, and where it was wrong a model costs more than a
# lookup.
MARGIN = 1.02
MAY_WRITE = 0.5  # of the tokens that a request has room for, it is expected to write at first, ...
WRITTEN_MEMORY = 0.95  # ... and then as others have; what is known of these counts for so much
LOOKS = 2  # requests a round, whose drafts by a model tell of it
OWN = 3  # drafts of a request's own, that tell more of it than others' do
LESS_FAR = 0.9  # than makes up for drafts that end early: rows beyond the planned ones take more
SLACK = 0.95  # of the best rate is enough for a lookup to draft as far as it wants: it has seen the
# match, and what is drafted teaches more


class Method(NamedTuple):
    """One of a mixture."""

    name: str
    proposer: Proposer
    is_lookup: bool


class Chooser:
    """Knows what each method's drafts bring, and what rounds take."""

    def __init__(
        self,
        methods: Sequence[Method],
        longest: int,
        costs: RoundCosts,
        reading: Reading,
    ) -> None:
        """methods: lookups, and then the model, if there is one; longest: most tokens of a draft;
        reading: of the model."""
        self._methods = methods
        self._longest = longest
        self._costs = costs
        self._reading = reading
        self._gains = [Gains(longest) for _ in methods]
        self._on_streaks = Gains(longest)
        """The model's, for those on a streak."""
        self._judged: list[Judged] = []
        """What is still to be learnt: when it has become much, or from..."""
        self._turn = 0
        """Rounds with a model's drafts that were learnt from."""
        self._learns_at = 0
        """... this round on, as soon as something is chosen anew."""
        self._may_write = MAY_WRITE
        self._usual: dict[tuple[int, int, int, float], Outlook] = {}
        """Of requests of which little is known, by method, size of the draft, batch, and seconds
        in which the model catches up, ..."""
        self._usual_until = 0
        """... up to this round."""

    def judged(self, one: Judged) -> None:
        """To be learnt from, some rounds together."""
        self._judged.append(one)
        if len(self._judged) >= PLANNED_FOR:
            self.learn(one.now + 1)

    def written(self, request: Request) -> None:
        """All it will."""
        share = request.num_output / max(1, request.max_total - request.num_prompt)
        self._may_write = averaged(self._may_write, share, WRITTEN_MEMORY)

    def _to_write(self, request: Request) -> float:
        """Tokens that it is expected to write."""
        return max(1.0, self._may_write * (request.max_total - len(request.tokens)))

    def choose(
        self, decode: Decode, known: Known, load: Load, now: int, asking: bool = False
    ) -> Choice:
        """What should yield most tokens a second in this round, `now`, if the whole batch did the
        same. load: of the batch; asking: whether lookups are asked."""
        if now >= self._usual_until:
            self._usual = {}
            self._usual_until = now + held(PLANNED_FOR, load.requests)
        batch, known_for = load.requests, known.load.requests
        if known.until <= now or (batch != known_for and not alike(known_for, batch)):
            if now >= self._learns_at:
                self.learn(now)
            if not self._methods[-1].is_lookup:
                known.fade(now)
            known.begin(load, now)
        reading = self.catching_up(decode.request, known, now, asking)
        key = decode.lookahead, reading, *[len(part.tokens) for part in known.found]
        choice = known.choices.get(key)
        if choice is None:
            choice = known.choices[key] = self._compare(decode, known, reading)
        return choice

    def catching_up(self, request: Request, known: Known, now: int, asking: bool = False) -> float:
        """Seconds in which the model catches up with the text, for each token that the request is
        expected to write, or NEVER; now, asking: as for `choose`."""
        if self._methods[-1].is_lookup:
            return 0.0
        reading = self._reading.seconds(request, self._costs)
        if reading <= 0:
            return reading
        tokens = self._to_write(request)
        if asking:
            tokens = self._reading.bearing(known, tokens, now)
        return about(reading / tokens)

    def _compare(self, decode: Decode, known: Known, reading: float) -> Choice:
        """The choice among all methods, or those that the request allows. reading: as in
        `_look_ahead`, or NEVER."""
        best: Choice | None = None
        others = 0.0
        for place, method in enumerate(self._methods):
            if known.only not in (None, place):
                continue
            longest = min(self._longest, method.proposer.longest)
            count = len(known.found[place].tokens) if method.is_lookup else longest
            by_model = not (method.is_lookup or reading == NEVER)
            own = 0.0 if method.is_lookup else reading
            key = place, Gains.size(count), own
            if key not in known.outlooks:
                known.outlooks[key] = self._outlook(place, known, count, own)
            gains, lengths, rates = known.outlooks[key]
            count = min(self._planned(place, decode.lookahead), len(gains), count)
            least = 1.0 if method.is_lookup else MARGIN
            if best is None or rates[count] > least * others:
                option = Option(gains[:count], by_model)
                plan = of_one(option, lengths[count], rates[count])
                best = Choice(place, option, plan, others or rates[0])
                others = plan.rate
        assert best is not None
        return best

    def promises(self, requests: Sequence[Request], load: Load) -> float:
        """Times the rate of none, that the model's drafts should yield for others like these of
        which nothing is known. load: of the batch."""
        count, longest = len(requests), min(self._longest, self._methods[-1].proposer.longest)
        reading = sum([self._costs.reading(one.num_prompt) for one in requests]) / count
        room = sum([one.max_total - one.num_prompt for one in requests]) / count
        reading /= max(1.0, self._may_write * room)
        place = len(self._methods) - 1
        rates = self._look_ahead(place, {}, load, longest, reading).rates
        return rates[-1] / rates[0]

    def _planned(self, place: int, room: int) -> int:
        """Tokens that are drafted where there is room for so many."""
        confidence = self._methods[place].proposer.confidence
        return room if confidence is None or not room else confidence.planned(room)

    def further(self, longest: int) -> Further:
        """What a model is asked for: nearly all that it would draft, were it sure enough."""
        confidence = self._methods[-1].proposer.confidence
        if confidence is None:
            return Further(1.0, longest)
        return Further(max(1.0, LESS_FAR / confidence.drafted), longest)

    def _outlook(self, place: int, known: Known, count: int, reading: float) -> Outlook:
        """What a draft of about `count` tokens should be worth."""
        if reading == NEVER:
            batch = known.load.requests
            return outlook(self._costs.rounds(known.load, batch), batch, [])
        size = Gains.size(count)
        own = known.gains[place].get(size)
        if own is not None and own.drafts >= OWN:
            return self._look_ahead(place, known.gains[place], known.load, count, reading)
        key = place, size, known.load.requests, reading
        if key not in self._usual:
            self._usual[key] = self._look_ahead(place, {}, known.load, count, reading)
        return self._usual[key]

    def _look_ahead(
        self, place: int, own: Records, load: Load, count: int, reading: float
    ) -> Outlook:
        """own: what was learnt of the request; load: of the batch; reading: seconds in which the
        model catches up with the request's text, for each token that it is expected to write: these
        bear them."""
        batch, costs = load.requests, self._costs
        seconds = costs.rounds(load, batch * (1 + self._longest))
        gains = self._gains[place].expected(own, count)
        if self._methods[place].is_lookup:
            return outlook(seconds, batch, gains, slack=SLACK)
        confidence = self._methods[place].proposer.confidence
        if confidence is not None:
            gains = confidence.squeezed(gains)
        drafts = costs.drafts(batch, len(gains))
        besides = costs.between.besides(batch)
        least = MARGIN
        found = outlook(seconds, batch, gains, drafts, besides, margin=least, reading=reading)
        if reading and not any(found.lengths):  # what others draft does not make it worth reading
            found = found._replace(gains=[0.0] * len(gains))
        return found

    def plan(self, choices: Sequence[Choice], load: Load, known: Plan | None = None) -> Plan:
        """How far each draft reaches. load: of the batch; known: a plan for about as many
        requests for which the model was chosen: it drafts as there."""
        if len(choices) == 1:
            return choices[0].plan
        options = [choice.option for choice in choices]
        batch, between = len(choices), self._costs.between
        seconds = self._costs.rounds(load, batch * (1 + self._longest))
        drafting = max(1, sum(option.by_model for option in options))
        drafts = self._costs.drafts(drafting, self._longest)
        besides = between.besides(batch)
        if known is not None:
            return with_finds(known, seconds, drafts, options, SLACK, besides)
        return best_lengths(seconds, drafts, options, SLACK, besides, MARGIN)

    def worth(self, rate: float, drafted: Sequence[int], load: Load) -> float:
        """Chance of being kept, from which a token that the model drafts pays for its row of the
        pass and for what it adds to its level of the draft: a level is left out only if all drafts
        have ended before. rate: tokens a second of the step; drafted: tokens of each request that
        the model should draft, of which one at least. Drafts that end early mostly do so in their
        second half: what this adds counts, for the first rows may add far more than the next
        ones."""
        lengths = [length for length in drafted if length]
        batch, rows, levels, count = load.requests, sum(lengths), max(2, *lengths), len(lengths)
        seconds, drafts = (
            self._costs.rounds(load, batch + rows),
            self._costs.drafts(count, levels),
        )
        half, middle = rows // 2, levels // 2
        a_row = (seconds[batch + rows] - seconds[batch + half]) / (rows - half)
        a_level = (drafts[levels] - drafts[middle]) / (levels - middle)
        by_tokens, confidence = tokens_share(count), self._methods[-1].proposer.confidence
        ended = 0.0 if confidence is None else 1 - confidence.drafted
        alone = ended ** (count - 1)
        saved = a_level * (by_tokens / count + (1 - by_tokens) * alone)
        return max(LEAST, rate * (a_row + saved))

    def far(self, rate: float, drafted: Sequence[int], load: Load) -> int:
        """Tokens of a draft for one on a streak, that should yield more than they take, where
        others have as many as they should; as for `worth`. 0: no more than others'."""
        if load.requests > 1 and self._methods[-1].proposer.pads:
            return 0
        longest = min(self._longest, self._methods[-1].proposer.longest)
        lengths = [length for length in drafted if length]
        count, rows, levels = len(lengths), load.requests + sum(lengths), max(lengths)
        first = sum(lengths) // count
        seconds = self._costs.rounds(load, rows + longest)
        drafts, by_tokens = self._costs.drafts(count, longest), tokens_share(count)
        a_level = 1 - by_tokens + by_tokens / count
        gains = self._on_streaks.expected({}, longest)
        best, far, worth = 0.0, 0, 0.0
        for length in range(first, longest):
            worth += gains[length] - rate * (seconds[rows + 1] - seconds[rows])
            worth -= rate * a_level * (drafts[length + 1] - drafts[length]) * (length >= levels)
            rows += 1
            if worth > best:
                best, far = worth, length + 1
        return far

    def learn(self, now: int) -> None:
        """From what was judged since the last time: seldom, for behind a pass each line is slow.
        now: this round."""
        for one in self._judged:
            if one.found:
                self._learn_of_lookups(one)
            if not self._methods[-1].is_lookup:
                self._learn_of_model(one)
        self._judged, self._learns_at = [], now + PLANNED_FOR

    def _learn_of_lookups(self, one: Judged) -> None:
        """All that they found is judged by what the text became."""
        for place, known in enumerate(one.requests):
            verdict, drafted = one.verdicts[place], len(one.tokens[place])
            for method, part in enumerate(one.found[place]):
                if method == one.taken[place] and drafted:
                    judged = part.verified(drafted, verdict)
                else:
                    judged = part.judged(verdict.tokens)
                if judged[0]:
                    self._gains[method].learn(known.gains[method], len(part.tokens), *judged)

    def _learn_of_model(self, one: Judged) -> None:
        """Each request has its own drafts to learn from; where a model alone drafts for many, it is
        itself judged by some, in turns."""
        model, proposer = len(self._methods) - 1, self._methods[-1].proposer
        longest, confidence = min(self._longest, proposer.longest), proposer.confidence
        drew = [place for place in range(len(one.requests)) if one.drew(place, model)]
        apart = 1 if one.found else -(-len(drew) // LOOKS)
        self._turn += bool(drew)
        for turn, place in enumerate(drew, self._turn):
            known, shared = one.requests[place], turn % apart == 0
            fared = one.fared(place)
            sure, streak = one.sure[place] if one.sure else (), one.streaks[place]
            if confidence is not None and len(sure) > fared.drafted:
                more = fared.asked - fared.drafted
                fared = fared._replace(beyond=confidence.beyond(known.noise, sure[-1], more))
            if confidence is not None and sure and shared:
                confidence.learn(known.noise, sure, fared.drafted, len(fared.kept))
            if streak:
                if shared:
                    self._on_streaks.learn(None, longest, *fared[1:])
                fared = fared.upto(streak)
            if confidence is not None and sure and shared:
                confidence.ended(fared.asked, fared.drafted, len(fared.kept), fared.whole)
            self._gains[-1].learn(known.gains[-1], longest, *fared[1:], shared)
            if one.tried and fared.drafted:
                self._gains[-1].doubt(longest, 1 in fared.kept)
