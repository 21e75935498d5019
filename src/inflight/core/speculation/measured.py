"""Measured speculation: drafts where they bring tokens, and almost nothing elsewhere.

Joins a drafter, acceptance (are its drafts right?), step cost (what do they take?), the controller (how many?), turns
(whom is it worth asking for?), questions (what does asking take?) and the time budget (what may be lost?). Each step it
offers the drafts of those whose turn it is to the controller; when the step has ended, all of these learn what came of
it. The same steps with the same times have the same drafts: no clock is read here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import mul

from msgspec import Struct

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
OBSERVED = 50e-3  # seconds after which a step tells what those take in which nobody was asked: short ones are alike
FIRST_ROUNDS = 16  # without questions that tell at once, since what questions take is measured against them
RECENT = 4  # steps behind one with drafts that tell at once: drafts that go on are measured against these
FIRST_TOKENS = 0.005  # by which drafts and questions may lengthen a step that computes prompts
KEPT_DRAFTS = 4  # of each sequence that is asked about, for which the account must hold seconds beside the question
DRAFTING = 2  # times the planning of a step with drafts that is left for it by those who wait for it
PROMISES = 4  # drafts that are looked at behind a token that is still being computed
NOBODY: frozenset[int] = frozenset()
NEVER = math.inf  # or rather, not before something has come that changes it


class _Drafted(Struct):
    """A step with drafts, until its result is there. step: what it would take. tokens: that it would yield without
    drafts. proposals: by sequence."""

    step: ExtendedStep
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
        self._next_look: float = 0  # the first step in which it is anybody's turn, unless something comes before
        self._step = 0  # the last whose result is there
        self._prompts = -1  # the last step whose prompts left no room for drafts
        self._running = 0  # sequences, when it was last found out whose turn it is
        self._judged_at = 0  # sequences, when those that pause had their verdicts
        self._like_it = (0.0, 0.0)  # the fewest and the most running for which these verdicts hold
        self._passed, self._told = 0.0, -1  # seconds of the steps behind this one, which the budget does not know yet
        self._ahead: set[int] = set()  # steps in flight that were planned ahead
        self._drafts_take = 0.0  # seconds, of a sequence's in the last step with candidates
        self._waits = -1, False  # a step, and whether all those that run may wait for its drafts
        self._rounds = Rounds(FIRST_ASKING)
        self._untold_rounds = FIRST_ROUNDS  # of the first ones, those that are still to tell
        self._tells_until: float = NEVER  # the last step that tells at once
        self._asked: dict[int, float] = {}  # seconds that looking at drafts was charged, by step

    # -- before a step ------------------------------------------------------------------------------------------

    def began(self, view: SequenceView) -> None:
        self._of[view.number] = SequenceAcceptance()
        self._turns.begin(view.number, self._step)
        self._next_look = 0
        self._questions.began(view)
        if view.itl_target is not None:
            self._targets[view.number] = view.itl_target

    def turns(self, step: int, running: int, ahead: bool) -> Collection[int] | None:
        if step < self._next_look and running == self._running and not ahead:
            return NOBODY
        self._running = running
        if ahead:
            self._ahead.add(step)
        elif self._ahead:
            self._ahead.discard(step)  # nothing could be planned ahead, and now it is planned anew
        fewest, most = self._like_it
        if not fewest <= running <= most:
            self._begin_batch(running)
        due, next_look = self._due(step)
        self._next_look = 0 if ahead else next_look
        return due

    def _due(self, step: int) -> tuple[Collection[int], float]:
        """Whose turn it is, and in which step that is to be found out next, unless something comes before."""
        if step < self._rests_until:
            return NOBODY, self._rests_until
        beside = self._rounds.asking + self._drafts_take
        if not self._questions.may_be_any(beside):
            return NOBODY, NEVER
        if not self._cost.ready:
            return NOBODY, 0
        due = self._turns.at(step)
        if not due:
            return NOBODY, self._turns.next_step
        return (due, 0) if self._questions.affords_any(due, beside) else (NOBODY, NEVER)

    def _begin_batch(self, running: int) -> None:
        """So many sequences run that verdicts of before may not hold."""
        self._judged_at, self._rests_until, self._rest, self._drafts_take = running, 0, 0, 0.0
        self._like_it = running / OTHER_BATCH, running * OTHER_BATCH
        self._turns.everybody()

    def waits(self, step: int) -> bool:
        return step - 1 in self._drafted

    def holds(self, step: int, view: SequenceView) -> bool:
        """It goes without a token meanwhile; where all do, they wait for as long as planning takes. So drafts behind
        the token that is being computed must promise more than that."""
        if self._prompts == step - 1:
            return False  # a long prompt fills several steps
        running = max(1, self._judged_at)
        each_token = self._budget.step_seconds / running
        planning = self._rounds.unhidden / running
        taken = self._drafts_take + DRAFTING * self._rounds.unhidden
        if self._waits[0] != step:  # those who come last are to be told the same as the first, or half of them go on
            may_all = self._budget.allows(2 * running * (ASKING + planning) + taken)
            self._waits = step, may_all and len(self._turns.due) >= running
        lost = min(each_token, planning) if self._waits[1] else each_token
        may = self._budget.allows(lost + taken)  # or it would be held for nothing
        found = self._chances(step, view, 1 + PROMISES, taken) if may else None
        if found is None or sum(accumulate(found[1][1:], mul)) * each_token <= lost:
            self._turns.pauses(view.number, step, self._longest_in_vain(self._budget.step_seconds))
            return False
        self._budget.settle(0.0, lost)
        return True

    def _seconds_each(self, step: ExtendedStep, tokens: int) -> float:
        """Of a token, in a step without drafts."""
        return (step.seconds + self._rounds.unasked) / max(1, tokens)

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        held, tokens = features(BatchPlan(step, tuple(chunks))), sum(chunk.sample > 0 for chunk in chunks)
        extended, longest = self._cost.extended(held), math.inf
        if held.tokens != held.samples:  # it computes prompts, whose first tokens are not to wait for drafts
            longest = extended.seconds * (1 + FIRST_TOKENS) - self._rounds.asking
            if extended.seconds + extended.extra(1) > longest:
                self._prompts = step
                return []
        self._asked.setdefault(step, 0.0)
        self._drafts_take = extended.extra(KEPT_DRAFTS)
        if extended.seconds <= 0 or not (self._was_drafting or self._may_pay(extended, tokens)):
            self._rest = min(LONGEST, max(1, 2 * self._rest))
            self._rests_until = step + self._rest
            return []
        self._rest = 0
        proposals, offers = self._ask(step, candidates, budget, extended)
        choice = self._chosen(offers, tokens, extended, budget, longest)
        for number, _ in offers:
            if number not in choice.counts:
                self._of[number].fade()
                self._turns.pauses(number, step)
        self._was_drafting = bool(choice.counts)
        if not choice.counts:
            return []
        self._tally.steps += 1
        self._tells_until = max(self._tells_until, step + RECENT)
        self._drafted[step] = _Drafted(extended, tokens, proposals)
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
        proposals: dict[int, Proposal] = {}
        offers: list[Offer] = []
        self._questions.begin()
        wanted = 0
        for view, room in candidates:
            most = min(room, self._most, budget)
            found = self._chances(step, view, most, extended.extra(wanted + min(most, KEPT_DRAFTS)))
            if found is None:
                continue
            proposal, chances = found
            if chances:
                wanted += min(len(chances), KEPT_DRAFTS)
                proposals[view.number] = proposal
                offers.append(Offer(view.number, chances))
            else:
                self._turns.pauses(view.number, step, self._longest_in_vain(extended.seconds))
        return proposals, offers

    def _chances(
        self, step: int, view: SequenceView, most: int, kept: float = 0.0
    ) -> tuple[Proposal, tuple[float, ...]] | None:
        """At most so many drafts of a sequence, and of each the chance that it is right if those before it are. None
        where finding out is more than may be lost now. kept: seconds that are not to be spent on it, since the drafts
        that were found would take them."""
        if most <= 0:
            return NOTHING, ()
        of = self._of[view.number]
        if isinstance(self._drafter, ExecutorDrafter):
            return NOTHING, self._acceptance.chances_by_place(of, most)
        price = self._questions.pay(view, kept)
        if price is None:
            return None
        self._asked[step] = self._asked.get(step, 0.0) + price
        self._tally.asked += 1
        proposal = self._drafter.propose(view, most)
        return proposal, self._acceptance.chances(of, proposal.chances)

    def _longest_in_vain(self, seconds: float) -> int:
        """Steps of so many seconds between two times that each sequence's drafts are asked for."""
        asking = len(self._of) * ASKING + self._rounds.asking
        return math.ceil(asking / (ASKING_SHARE * seconds)) if seconds > 0 else LONGEST

    def _chosen(self, offers: list[Offer], tokens: int, step: ExtendedStep, budget: int, longest: float) -> Choice:
        """The controller's choice, or now and then a trial of what it refuses; what it may lose is there to lose.
        longest: seconds that the step may take."""
        if not offers:
            return NO_DRAFTS
        if self._targets:
            longest = min(longest, HEADROOM * min(self._targets.values()))
        longest = min(longest, step.seconds + self._budget.seconds - self._rounds.unhidden)
        margin = 0.0 if self._was_drafting else MARGIN
        unasked = self._rounds.unasked
        between = unasked + self._rounds.unhidden
        choice = choose(offers, tokens, step, budget, longest, margin, self._makes_passes, between, unasked)
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
        self._step = step = plan.step
        self._passed += result.seconds
        is_told = self._passed >= OBSERVED or step <= self._tells_until
        if not is_told and step not in self._asked and not self._ahead:
            return  # a short step is not to wait for what the next ones tell as well
        ahead, drafted, asked = step in self._ahead, self._drafted.get(step), self._asked.get(step)
        self._forget(step)
        self._budget.passed(self._passed, max(1, step - self._told))
        self._passed, self._told = 0.0, step
        if self._next_look == NEVER:
            self._next_look = 0  # the account has grown
        if round_seconds and held.tokens == held.samples:  # a round of decodes alone
            between = min(result.seconds, max(0.0, round_seconds - result.seconds))
            self._budget.settle(0.0, self._rounds.observe(between, ahead, asked))
            if asked is None and self._untold_rounds:
                self._untold_rounds -= 1
                self._tells_until = NEVER if self._untold_rounds else step + RECENT
        if result.error is None and (drafted is not None or is_told):
            self._cost.observe(held, result.seconds - result.draft_seconds)
        if drafted is not None and result.error is None:
            # Those of whom others drafted what is surely right are not among the proposals.
            proposed = [one for one in plan.chunks if one.num_drafts and one.sequence_id in drafted.proposals]
            made = {one.sequence_id: one.num_drafts for one in proposed if one.sequence_id not in result.undrafted}
            self._learn(drafted, made, result)
            for number in result.undrafted:
                if number in self._turns:
                    self._turns.again(number, step)

    def _forget(self, step: int) -> None:
        """This step, and those before it that nobody told of: they had no chunks, or never came back."""
        self._ahead = {one for one in self._ahead if one > step}
        for kept in (self._drafted, self._asked):
            for one in [one for one in kept if one <= step]:
                del kept[one]

    def _learn(self, drafted: _Drafted, counts: dict[int, int], result: StepResult) -> None:
        """What came of drafts: who was right, and what that was worth. counts: by sequence, of those that were made;
        the planner may have had less room than was allotted."""
        drafting = 0.0
        if result.draft_seconds > 0 and counts:
            drafting = self._cost.observe_passes(max(counts.values()), result.draft_seconds)
        elif result.draft_seconds > 0:  # the drafter was catching up
            drafting = min(result.draft_seconds, self._cost.pass_seconds)
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
        cost = drafted.step.extra(sum(counts.values())) + drafting + self._rounds.unhidden
        each_token = self._seconds_each(drafted.step, drafted.tokens)
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
