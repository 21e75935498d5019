"""The speculation controller: drafts where they bring tokens, and almost nothing elsewhere.

Each step it asks the drafter for those sequences that are due (`backoff`), weighs their drafts against what they cost
(`acceptance`, `step_cost`, `goodput`), and learns from the result. No clock is read here: the same steps with the same
durations have the same drafts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import mul

from msgspec import Struct, field

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.speculation.acceptance import Acceptance, SequenceAcceptance
from inflight.core.speculation.backoff import MAX_PAUSE, NO_SEQUENCES, DraftBackoff
from inflight.core.speculation.drafter import NOTHING, Drafter, ExecutorDrafter, Proposal
from inflight.core.speculation.goodput import Offer, choose
from inflight.core.speculation.speculation import HEADROOM, MAX_DRAFTS, Allotment, Candidate
from inflight.core.speculation.stats import SpeculationStats, SpeculationTally
from inflight.core.speculation.step_cost import ExtendedStep, StepCost
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

ROUND_SECONDS = 50e-6  # that a step with any question to the drafter takes beside them
ASK_SECONDS = 10e-6  # of a question about one sequence
READ_SECONDS = 0.4e-6  # for each token that the drafter has not seen, of the sequence and of answers that ended
ASK_SHARE = 0.001  # of the time, that asking may take where it brings nothing
MAX_ASK_SHARE = 0.05  # of a step, after which a round asks about no further sequence that would be new to the drafter
FIRST_TOKEN_SLACK = 0.005  # by which drafts may lengthen a step that computes prompts
LOOKAHEAD = 4  # drafts that are looked at behind a token that is still being computed
SAMPLED_STEPS = 16  # of steps without drafts, one in so many teaches what steps cost
CERTAIN_DRAFTS = (1, 2, 4, 8)  # numbers of drafts that are tried for whether right ones would pay
TRIAL_DRAFTS = 2
MIN_REFUSALS, MAX_REFUSALS = 3, 24  # steps with drafts of which all were refused, before a trial


class _Sequence(Struct):
    """A running sequence. read: tokens of it that the drafter was shown."""

    itl_target: float | None
    acceptance: SequenceAcceptance
    read: int = 0


class _Asked(Struct):
    """Answers of a round, by sequence. chances: of those that may have drafts. prices: seconds that questions took."""

    proposals: dict[int, Proposal] = field(default_factory=dict)
    chances: dict[int, tuple[float, ...]] = field(default_factory=dict)
    prices: dict[int, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(self.prices.values())


class _DraftedStep(Struct):
    """A step with drafts, until its result is there. cost: durations. tokens: that it yields without drafts. beliefs:
    of the drafter, by sequence."""

    cost: ExtendedStep
    tokens: int
    beliefs: dict[int, tuple[float, ...]]


class SpeculationController:
    def __init__(self, drafter: Drafter | ExecutorDrafter, latency: LatencyModel, max_drafts: int = MAX_DRAFTS):
        """Create a controller.

        Args:
            drafter: Makes drafts when a step is planned, or stands for the executor.
            latency: The scheduler's model of step time, which learns by itself.
            max_drafts: Drafts of a sequence in a step.
        """
        self._drafter = drafter
        self._in_executor = isinstance(drafter, ExecutorDrafter)
        self._max_drafts = min(max_drafts, drafter.most) if isinstance(drafter, ExecutorDrafter) else max_drafts
        self._asking = (0.0, 0.0) if self._in_executor else (ROUND_SECONDS, ASK_SECONDS)
        self._cost = StepCost(latency)
        self._acceptance = Acceptance()
        self._backoff = DraftBackoff()
        self._sequences: dict[int, _Sequence] = {}
        self._drafted: dict[int, _DraftedStep] = {}
        self._step = self._drafted_step = -1  # the last whose result is there; the last of these that had drafts
        self._asked: dict[int, float] = {}  # seconds that questions took, by step
        self._refusals, self._trial_refusals = 0, MIN_REFUSALS  # steps in a row; how many until the next trial
        self._tally = SpeculationTally(drafter.name)

    # -- before a step ------------------------------------------------------------------------------------------

    def began(self, view: SequenceView) -> None:
        self._sequences[view.number] = _Sequence(view.itl_target, SequenceAcceptance())
        self._backoff.begin(view.number, self._step)

    def waits(self, step: int) -> bool:
        return step - 1 in self._drafted

    def due(self, step: int) -> Collection[int]:
        return self._backoff.due(step) if self._cost.ready else NO_SEQUENCES

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> Collection[int]:
        """Ask for drafts behind the token that is being computed. A sequence that is left out has no token meanwhile;
        where all are, only the scheduling is exposed."""
        context = sum([view.prompt_tokens + view.output_tokens for view in views]) * running // len(views)
        cost = self._cost.extended(Features(running, running, running, context, 0.0))
        asked = self._ask(step, [Candidate(view, 1 + LOOKAHEAD) for view in views], cost)
        lost = min(1.0, cost.exposed / cost.seconds) if len(asked.chances) == running and cost.seconds else 1.0
        first = 0 if self._in_executor else 1  # an executor says nothing of the tokens to come
        behind = [Offer(number, chances[first:]) for number, chances in asked.chances.items()]
        worth = [offer for offer in behind if sum(accumulate(offer.chances, mul)) > lost]
        held = choose(worth, running, cost, MAX_DRAFTS * running, self._max_seconds(), self._in_executor, *self._asking)
        self._refuse(step, asked, held, cost)
        return held

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        work, tokens = features(BatchPlan(step, tuple(chunks))), sum([chunk.sample > 0 for chunk in chunks])
        cost, max_seconds = self._cost.extended(work), self._max_seconds()
        if work.tokens != work.samples:  # it computes prompts, whose first tokens are not to wait for drafts
            asking = self._asking[0] + self._asking[1] * len(candidates)
            max_seconds = min(max_seconds, (1 + FIRST_TOKEN_SLACK) * cost.seconds - asking)
            if cost.seconds + cost.extra(1) > max_seconds:
                return []
        if not self._may_pay(cost, tokens):
            self._backoff.pause([view.number for view, _ in candidates], step)
            return []
        asked = self._ask(
            step, [Candidate(view, min(room, budget, self._max_drafts)) for view, room in candidates], cost
        )
        offers = [Offer(number, chances) for number, chances in asked.chances.items()]
        counts = choose(offers, tokens, cost, budget, max_seconds, self._in_executor, *self._asking)
        counts = counts or self._trial(offers, cost, budget, max_seconds)
        self._refuse(step, asked, counts, cost)
        if not counts:
            return []
        self._tally.steps += 1
        self._drafted[step] = _DraftedStep(cost, tokens, {number: asked.proposals[number].chances for number in counts})
        return [Allotment(one, count, asked.proposals[one].token_ids[:count]) for one, count in counts.items()]

    def _trial(self, offers: Sequence[Offer], cost: ExtendedStep, budget: int, max_seconds: float) -> dict[int, int]:
        """Try the likeliest drafts after some steps that refused all: chances and costs may be better than believed."""
        if not offers:
            return {}
        self._refusals += 1
        number, chances = max(offers, key=lambda offer: offer.chances[0])
        drafts = min(TRIAL_DRAFTS, len(chances), budget)
        passes = drafts * cost.pass_seconds if self._in_executor else 0.0
        if self._refusals < self._trial_refusals or cost.seconds + cost.extra(drafts) + passes > max_seconds:
            return {}
        self._refusals, self._trial_refusals = 0, min(2 * self._trial_refusals, MAX_REFUSALS)
        return {number: drafts}

    def _max_seconds(self) -> float:
        """Return what the ITL targets of the running sequences leave for a step."""
        targets = [one.itl_target for one in self._sequences.values() if one.itl_target is not None]
        return HEADROOM * min(targets) if targets else math.inf

    def _may_pay(self, cost: ExtendedStep, tokens: int) -> bool:
        """Return whether drafts that are surely right would pay."""
        each_token = (cost.seconds + cost.gap) / max(1, tokens)
        asking = cost.pass_seconds if self._in_executor else ASK_SECONDS
        return any(count * each_token > cost.extra(count) + asking for count in CERTAIN_DRAFTS)

    def _ask(self, step: int, candidates: Sequence[Candidate], cost: ExtendedStep) -> _Asked:
        """Ask for the drafts of these sequences. New ones, which the drafter would have to read, wait for later steps
        where that took much of this one."""
        asked, is_new = _Asked(), self._backoff.is_new
        for view, room in candidates:
            number, proposal = view.number, NOTHING
            sequence = self._sequences[number]
            if room > 0 and not isinstance(self._drafter, ExecutorDrafter):
                if is_new(number) and asked.seconds > MAX_ASK_SHARE * cost.seconds:
                    continue
                asked.prices[number] = self._price(view, sequence)
                proposal = self._drafter.propose(view, room)
                room = len(proposal.token_ids)
            asked.proposals[number] = proposal
            if room > 0:
                asked.chances[number] = self._acceptance.chances(sequence.acceptance, proposal.chances, room)
        self._tally.asked += len(asked.prices)
        return asked

    def _price(self, view: SequenceView, sequence: _Sequence) -> float:
        """Return the seconds that a question takes, and count what the drafter reads for it."""
        known = view.prompt_tokens + view.output_tokens
        unread, sequence.read = known - sequence.read, known
        return ASK_SECONDS + READ_SECONDS * unread

    def _refuse(self, step: int, asked: _Asked, counts: Collection[int], cost: ExtendedStep) -> None:
        """Have the sequences that were asked about, and have no drafts, pause."""
        refused = [number for number in asked.proposals if number not in counts]
        for number in refused:
            if number in asked.chances:
                self._sequences[number].acceptance.fade()
        self._backoff.pause(refused, step, self._max_pause(cost.seconds))
        vain = sum([asked.prices.get(number, 0.0) for number in refused])
        new = sum([asked.prices.get(number, 0.0) for number in refused if self._backoff.is_new(number)])
        self._asked[step] = self._asked.get(step, 0.0) + asked.seconds + ROUND_SECONDS
        self._backoff.asked(asked.proposals, step, new / (ASK_SHARE * cost.seconds) if cost.seconds else 0.0)
        self._tally.settle(-vain)

    def _max_pause(self, seconds: float) -> int:
        """Return the pause with which asking about all sequences takes a small share of steps of this duration."""
        asking = ROUND_SECONDS + ASK_SECONDS * len(self._sequences)
        steps = asking / (ASK_SHARE * seconds) if seconds > 0 else MAX_PAUSE
        return MAX_PAUSE if steps > MAX_PAUSE / 2 else 1 << math.ceil(math.log2(max(1.0, steps)))

    # -- behind it ----------------------------------------------------------------------------------------------

    def observe(self, plan: BatchPlan, work: Features, result: StepResult, round_seconds: float) -> None:
        step = self._step = plan.step
        recent = step <= self._drafted_step + SAMPLED_STEPS
        if step % SAMPLED_STEPS and not recent and not self._drafted and not self._asked:
            return  # short steps are not to wait for what others teach as well
        drafted = self._drafted.get(step)
        self._drafted = {one: kept for one, kept in self._drafted.items() if one > step}
        if round_seconds and work.tokens == work.samples:
            gap = min(result.seconds, round_seconds - result.seconds - self._asked.get(step, 0.0))
            self._cost.observe_gap(max(0.0, gap), behind_drafts=step - 1 == self._drafted_step)
        self._asked = {one: seconds for one, seconds in self._asked.items() if one > step}
        if result.error is not None:
            return
        self._cost.observe(work, result.seconds - result.draft_seconds)
        if drafted is not None:
            self._drafted_step = step
            self._learn(drafted, plan, result)

    def _learn(self, drafted: _DraftedStep, plan: BatchPlan, result: StepResult) -> None:
        """Learn which drafts were right, and what that was worth. The planner may have had less room than was allotted,
        and the executor may have lacked what it drafts from."""
        counts = {one.sequence_id: one.num_drafts for one in plan.chunks if one.sequence_id in drafted.beliefs}
        made = {number: count for number, count in counts.items() if count and number not in result.undrafted}
        accepted: dict[int, int] = {}
        for sampled in result.sampled:
            number, more = sampled.sequence_id, len(sampled.token_ids) - 1
            if number not in made or number not in self._sequences or more < 0:
                continue
            self._tally.add(made[number], more)
            self._acceptance.learn(self._sequences[number].acceptance, drafted.beliefs[number], made[number], more)
            if more:
                accepted[number] = more
        self._backoff.right(accepted)
        wrong = [number for number in made if number in self._sequences and number not in accepted]
        self._backoff.pause(wrong, plan.step, self._max_pause(drafted.cost.seconds))
        drafting = 0.0
        if result.draft_seconds > 0:  # without any made, the executor was catching up
            passes = max(made.values(), default=0)
            seconds = min(result.draft_seconds, self._cost.pass_seconds)
            drafting = self._cost.observe_passes(passes, result.draft_seconds) if passes else seconds
        cost = drafted.cost
        each_token = (cost.seconds + cost.gap) / max(1, drafted.tokens)
        spent = cost.extra(sum(made.values())) + drafting + cost.exposed
        won = sum(accepted.values()) * each_token - spent
        if won > 0:
            self._trial_refusals = MIN_REFUSALS
        self._tally.settle(won)

    def finished(self, view: SequenceView) -> None:
        self._sequences.pop(view.number, None)
        self._backoff.end(view.number)
        if not isinstance(self._drafter, ExecutorDrafter):
            self._drafter.finished(view)

    def stats(self) -> SpeculationStats:
        return self._tally.stats()
