"""Measured speculation: drafts where they bring tokens, and almost nothing elsewhere.

Joins a drafter, acceptance (are its drafts right?), step cost (what do they take?), the controller (how many?), turns
(whom is it worth asking for?), questions (what does asking take?) and the time budget (what may be lost?). Each step it
offers the drafts of those whose turn it is to the controller; when the step has ended, all of these learn what came of
it. The same steps with the same times have the same drafts: no clock is read here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.speculation.acceptance import Acceptance, SequenceAcceptance
from inflight.core.speculation.controller import NO_DRAFTS, Choice, Offer, choose
from inflight.core.speculation.drafter import NOTHING, Drafter, ExecutorDrafter, Proposal
from inflight.core.speculation.questions import ASKING, Questions
from inflight.core.speculation.rounds import Rounds
from inflight.core.speculation.speculation import HEADROOM, MOST, Allotment, Candidate
from inflight.core.speculation.stats import SpeculationStats, SpeculationTally
from inflight.core.speculation.step_cost import ExtendedStep, StepCost
from inflight.core.speculation.time_budget import TimeBudget
from inflight.core.speculation.turns import LONGEST, Turns
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

FIRST_ASKING = 100e-6  # seconds that a round with questions takes beside these, before one is measured
ASKING_SHARE = 0.001  # of the time, that asking in vain takes at most
MARGIN = 0.02  # by which a step must be better with drafts, where the one before it had none
SURELY = (1, 2, 4, 8)  # drafts that are tried for whether right ones would pay at all
OTHER_BATCH = 1.5  # times as many running, or as few: verdicts may differ
FIRST_TRIAL = 3  # steps in a row whose offers are all refused, before one is tried for all that
LAST_TRIAL = 24  # the same, after trials that failed
WHOLE_TRIAL = 2  # drafts of a trial at most
OBSERVED = 8e-3  # seconds after which a step tells what those take in which nobody was asked: short ones are alike
DRAFTING = 2  # times the planning of a step with drafts that is left for it by those who wait for it
PROMISES = 4  # drafts that are looked at behind a token that is still being computed
NOBODY: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Drafted:
    """A step with drafts, until its result is there. held: its features without them. proposals: by sequence."""

    held: Features
    tokens: int
    proposals: dict[int, Proposal]


class MeasuredSpeculation:
    def __init__(self, drafter: Drafter | ExecutorDrafter, latency: LatencyModel, most: int = MOST):
        """latency: the scheduler's model of step time, which learns by itself. most: drafts of a sequence in a step."""
        self._drafter = drafter
        self._makes_passes = isinstance(drafter, ExecutorDrafter)
        self._most = min(most, drafter.most) if isinstance(drafter, ExecutorDrafter) else most
        self._acceptance = Acceptance()
        self._of: dict[int, SequenceAcceptance] = {}
        self._cost = StepCost(latency)
        self._budget = TimeBudget()
        self._questions = Questions(self._budget, reads=not self._makes_passes)
        self._turns = Turns()
        self._tally = SpeculationTally(drafter.name)
        self._targets: dict[int, float] = {}  # ITL targets of those that run, in seconds
        self._drafted: dict[int, _Drafted] = {}  # by step
        self._was_drafting = False  # whether the last step with candidates had drafts
        self._refused, self._trial = 0, FIRST_TRIAL  # steps in a row; how many until the next trial
        self._rests_until, self._rest = 0, 0  # step; steps of the last rest, in which nobody is asked
        self._running = 0  # sequences, when those that pause had their verdicts
        self._like_it = (0.0, 0.0)  # the fewest and the most running for which these verdicts hold
        self._passed, self._passed_steps = 0.0, 0  # seconds of steps that the budget has not been told of
        self._ahead: set[int] = set()  # steps in flight that were planned ahead
        self._rounds = Rounds(FIRST_ASKING)
        self._asked: dict[int, float] = {}  # seconds that looking at drafts was charged, by step

    # -- before a step ------------------------------------------------------------------------------------------

    def began(self, view: SequenceView) -> None:
        self._of[view.number] = SequenceAcceptance()
        self._turns.begin(view.number)
        self._questions.began(view)
        if view.itl_target is not None:
            self._targets[view.number] = view.itl_target

    def turns(self, step: int, running: int, ahead: bool) -> Collection[int] | None:
        if ahead:
            self._ahead.add(step)
        elif self._ahead:
            self._ahead.discard(step)  # nothing could be planned ahead, and now it is planned anew
        fewest, most = self._like_it
        if not fewest <= running <= most:
            self._begin_batch(running)
        beside = self._rounds.asking
        if step < self._rests_until or not self._questions.may_be_any(beside) or not self._cost.ready:
            return NOBODY
        due = self._turns.at(step)
        return due if not due or self._questions.affords_any(due, beside) else NOBODY

    def _begin_batch(self, running: int) -> None:
        """So many sequences run that verdicts of before may not hold."""
        self._running, self._rests_until, self._rest = running, 0, 0
        self._like_it = running / OTHER_BATCH, running * OTHER_BATCH
        self._turns.everybody()

    def waits(self, step: int) -> bool:
        return step - 1 in self._drafted

    def holds(self, step: int, view: SequenceView) -> bool:
        """It goes without a token meanwhile; where all do, they wait for as long as planning takes. So drafts behind
        the token that is being computed must promise more than that."""
        each_token = self._budget.step_seconds / max(1, self._running)
        all_wait = len(self._turns.due) >= self._running
        lost = min(each_token, self._rounds.unhidden / max(1, self._running)) if all_wait else each_token
        may = self._budget.allows(lost + DRAFTING * self._rounds.unhidden)  # or it would be held for nothing
        chances = self._chances(step, view, 1 + PROMISES)[1][1:] if may else ()
        if sum(accumulate(chances, mul)) * each_token <= lost:
            self._turns.pauses(view.number, step, self._longest_in_vain(self._budget.step_seconds))
            return False
        self._budget.settle(0.0, lost)
        return True

    def _seconds_each(self, step: ExtendedStep, tokens: int) -> float:
        """Of a token, in a step without drafts."""
        return (step.seconds + self._rounds.behind - self._rounds.unhidden) / max(1, tokens)

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        held, tokens = features(BatchPlan(step, tuple(chunks))), sum(chunk.sample > 0 for chunk in chunks)
        extended = self._cost.extended(held)
        self._asked.setdefault(step, 0.0)
        if extended.seconds <= 0 or not self._may_pay(extended, tokens):
            self._rest = min(LONGEST, max(1, 2 * self._rest))
            self._rests_until = step + self._rest
            return []
        self._rest = 0
        proposals, offers = self._ask(step, candidates, budget, extended)
        choice = self._chosen(offers, tokens, extended, budget)
        for number, _ in offers:
            if number not in choice.counts:
                self._of[number].fade()
                self._turns.pauses(number, step)
        self._was_drafting = bool(choice.counts)
        if not choice.counts:
            return []
        self._tally.steps += 1
        self._drafted[step] = _Drafted(held, tokens, proposals)
        return [
            Allotment(number, count, proposals[number].token_ids[:count]) for number, count in choice.counts.items()
        ]

    def _may_pay(self, step: ExtendedStep, tokens: int) -> bool:
        """Whether drafts that are surely right would pay in this step."""
        asking = step.pass_seconds if self._makes_passes else ASKING
        each_token = self._seconds_each(step, tokens)
        return any(count * each_token > step.extra(count) + asking for count in SURELY)

    def _ask(
        self, step: int, candidates: Sequence[Candidate], budget: int, extended: ExtendedStep
    ) -> tuple[dict[int, Proposal], list[Offer]]:
        """What those that may have any could have. Those of whom nothing comes pause, so long that asking takes only a
        small share of the time; those for whom the account lacks seconds have their turn when it holds them."""
        vain = self._longest_in_vain(extended.seconds)
        proposals: dict[int, Proposal] = {}
        offers: list[Offer] = []
        self._questions.begin()
        for view, room in candidates:
            if room > 0 and not self._questions.affords(view):
                continue
            proposal, chances = self._chances(step, view, min(room, self._most, budget))
            if chances:
                proposals[view.number] = proposal
                offers.append(Offer(view.number, chances))
            else:
                self._turns.pauses(view.number, step, vain)
        return proposals, offers

    def _chances(self, step: int, view: SequenceView, most: int) -> tuple[Proposal, tuple[float, ...]]:
        """At most so many drafts of a sequence, and of each the chance that it is right if those before it are. None
        where finding out is more than may be lost now."""
        of = self._of[view.number]
        if most <= 0:
            return NOTHING, ()
        if isinstance(self._drafter, ExecutorDrafter):
            return NOTHING, self._acceptance.chances_by_place(of, most)
        if not self._questions.affords(view):
            return NOTHING, ()
        self._asked[step] = self._asked.get(step, 0.0) + self._questions.pay(view)
        self._tally.asked += 1
        proposal = self._drafter.propose(view, most)
        return proposal, self._acceptance.chances(of, proposal.chances)

    def _longest_in_vain(self, seconds: float) -> int:
        """Steps of so many seconds between two times that each sequence's drafts are asked for."""
        asking = len(self._of) * ASKING + self._rounds.asking
        return math.ceil(asking / (ASKING_SHARE * seconds)) if seconds > 0 else LONGEST

    def _chosen(self, offers: list[Offer], tokens: int, step: ExtendedStep, budget: int) -> Choice:
        """The controller's choice, or now and then a trial of what it refuses; what it may lose is there to lose."""
        if not offers:
            return NO_DRAFTS
        target = HEADROOM * min(self._targets.values()) if self._targets else math.inf
        longest = min(target, step.seconds + self._budget.seconds - self._rounds.unhidden)
        margin = 0.0 if self._was_drafting else MARGIN
        between = self._rounds.behind
        ahead = between - self._rounds.unhidden
        choice = choose(offers, tokens, step, budget, longest, margin, self._makes_passes, between, ahead)
        if choice.counts:
            self._refused = 0
            return choice
        self._refused += 1
        if self._refused < self._trial:
            return NO_DRAFTS
        number, chances = max(offers, key=lambda offer: offer.chances[0])
        count = min(WHOLE_TRIAL, len(chances), budget)
        seconds = step.extra(count) + (count * step.pass_seconds if self._makes_passes else 0.0)
        if count <= 0 or step.seconds + seconds > longest:
            return NO_DRAFTS
        self._refused, self._trial = 0, min(2 * self._trial, LAST_TRIAL)
        return Choice({number: count}, math.prod(chances[:count]), seconds)

    # -- behind it ----------------------------------------------------------------------------------------------

    def observe(self, plan: BatchPlan, held: Features, result: StepResult, round_seconds: float) -> None:
        step = plan.step
        self._passed += result.seconds
        self._passed_steps += 1
        is_told = self._passed >= OBSERVED
        if not is_told and step not in self._asked and not self._ahead:
            return  # a short step is not to wait for what the next ones tell as well
        ahead, drafted = step in self._ahead, self._drafted.pop(step, None)
        self._ahead.discard(step)
        asked = self._asked.pop(step, None)
        self._budget.passed(self._passed, self._passed_steps)
        self._passed, self._passed_steps = 0.0, 0
        if round_seconds:
            between = min(result.seconds, max(0.0, round_seconds - result.seconds))
            self._budget.settle(0.0, self._rounds.observe(between, ahead, asked))
        if result.error is None and (drafted is not None or is_told):
            self._cost.observe(held, result.seconds - result.draft_seconds)
        if drafted is not None and result.error is None:
            # Those of whom others drafted what is surely right are not among the proposals.
            proposed = [one for one in plan.chunks if one.num_drafts and one.sequence_id in drafted.proposals]
            self._learn(drafted, {one.sequence_id: one.num_drafts for one in proposed}, result)

    def _learn(self, drafted: _Drafted, counts: dict[int, int], result: StepResult) -> None:
        """What came of drafts: who was right, and what that was worth. counts: by sequence; the planner may have had
        less room than was allotted."""
        if result.draft_seconds > 0 and counts:
            self._cost.observe_passes(max(counts.values()), result.draft_seconds)
        accepted = 0
        for sampled in result.sampled:
            count, right = counts.get(sampled.sequence_id, 0), len(sampled.token_ids) - 1
            of = self._of.get(sampled.sequence_id)
            if not count or of is None or right < 0:
                continue
            accepted += right
            self._tally.add(count, right)
            self._acceptance.learn(of, drafted.proposals[sampled.sequence_id].chances[:count], count, right)
            if right:
                self._turns.pays(sampled.sequence_id)
        step = self._cost.extended(drafted.held)
        cost = step.extra(sum(counts.values())) + result.draft_seconds + self._rounds.unhidden
        each_token = self._seconds_each(step, drafted.tokens)
        self._budget.settle(accepted * each_token, cost)
        if accepted * each_token > cost:
            self._trial = FIRST_TRIAL

    def finished(self, view: SequenceView) -> None:
        self._of.pop(view.number, None)
        self._turns.end(view.number)
        self._targets.pop(view.number, None)
        self._questions.ended(view)
        if not isinstance(self._drafter, ExecutorDrafter):
            self._drafter.finished(view)

    def stats(self) -> SpeculationStats:
        return self._tally.stats(self._budget.won, self._budget.lost)
