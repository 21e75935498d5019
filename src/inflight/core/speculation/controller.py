"""The speculation controller, which drafts where that brings tokens.

Each step the controller asks the drafter for the sequences that are due, weighs their drafts against what they cost,
and learns from the result. No clock is read here: the same steps with the same durations have the same drafts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.speculation.acceptance import ASK_SECONDS, MIN_STEP_SECONDS, NO_SEQUENCES, ROUND_SECONDS, Acceptance
from inflight.core.speculation.goodput import ExtendedStep, StepCost, choose
from inflight.core.speculation.speculation import (
    MAX_DRAFTS,
    NOTHING,
    Allotment,
    DraftCandidate,
    Drafter,
    ExecutorDrafter,
    Proposal,
    Speculation,
    SpeculationStats,
    StepLimit,
)
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

LOOKAHEAD = 4  # drafts that are considered behind a token that is still being computed
SAMPLED_STEPS = 64  # of steps without drafts, one in so many teaches what steps cost
TRIAL_DRAFTS = 2
TRIAL_REFUSALS = 16  # steps with drafts of which all were refused, before a trial


Beliefs = dict[int, tuple[float, ...]]  # of a drafter in its drafts, by sequence


class SpeculationController(Speculation):
    def __init__(self, drafter: Drafter | ExecutorDrafter, latency: LatencyModel, max_drafts: int = MAX_DRAFTS):
        """drafter: makes drafts when a step is planned, or stands for the executor. latency: the scheduler's model of
        step time, which learns by itself. max_drafts: of a sequence in a step."""
        self._drafter, self._max_drafts, self._cost = None, max_drafts, StepCost(latency)
        if isinstance(drafter, ExecutorDrafter):
            self._max_drafts = min(max_drafts, drafter.max_drafts)
        else:
            self._drafter, self._cost = drafter, StepCost(latency, ROUND_SECONDS, ASK_SECONDS)
        self._latency, self._acceptance = latency, Acceptance()
        self._limit = StepLimit()
        self._drafted: dict[int, tuple[ExtendedStep, Beliefs]] = {}  # steps whose results are not there
        self._drafted_step = -1  # the last that had drafts, and whose result is there
        self._asked_step, self._asking = -1, 0.0  # the last with questions to the drafter, and the seconds of these
        self._prompt_step = -1  # the last with candidates that computed prompts
        self._refusals = 0  # steps with drafts of which all were refused
        self._stats = SpeculationStats(drafter.name)

    def began(self, view: SequenceView) -> None:
        self._acceptance.begin(view.number)
        self._limit.began(view)

    def finished(self, view: SequenceView) -> None:
        self._acceptance.end(view.number)
        self._limit.finished(view)
        if self._drafter is not None:
            self._drafter.finished(view)

    def waits(self, step: int) -> bool:
        return step - 1 in self._drafted

    def due(self, step: int) -> Collection[int]:
        due = self._acceptance.due(step)
        return due if due and self._latency.ready else NO_SEQUENCES

    def stats(self) -> SpeculationStats:
        return replace(self._stats, drafted=[*self._stats.drafted], accepted=[*self._stats.accepted])

    # -- before a step ------------------------------------------------------------------------------------------

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> Collection[int]:
        """Ask for drafts behind the token that is being computed. A sequence that is left out has no token meanwhile;
        where all are, only the scheduling is exposed."""
        if self._prompt_step == step - 1:  # a long prompt fills several steps
            return NO_SEQUENCES
        context = sum([view.prompt_tokens + view.output_tokens for view in views]) * running // len(views)
        cost = self._cost.extended(Features(running, running, running, context, 0.0))
        rooms = [min(1 + LOOKAHEAD, view.max_output_tokens - view.output_tokens - 1) for view in views]
        asked = self._ask(step, views, rooms)
        known = 0 if self._drafter is None else 1  # an executor knows nothing of tokens to come
        offers = {number: chances[known:] for number, (_, chances) in asked.items()}
        lost = min(1.0, cost.exposed / max(cost.seconds(), MIN_STEP_SECONDS)) if len(offers) == running else 1.0
        worth = {number: chances for number, chances in offers.items() if sum(accumulate(chances, mul)) > lost}
        held = self._choose(worth, cost, MAX_DRAFTS * running)
        self._stats.add_seconds(-self._acceptance.refuse(views, held, step, cost.seconds()))
        return held

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[DraftCandidate], budget: int
    ) -> list[Allotment]:
        work = features(BatchPlan(step, tuple(chunks)))
        if work.tokens != work.samples:  # it computes prompts, whose first tokens are not to wait for drafts
            self._prompt_step = step
            return []
        cost, views = self._cost.extended(work), [view for view, _ in candidates]
        asked = self._ask(step, views, [min(room, budget, self._max_drafts) for _, room in candidates])
        offers = {number: chances for number, (_, chances) in asked.items()}
        counts = self._choose(offers, cost, budget)
        if offers and not counts:
            self._refusals += 1
            if not self._refusals % TRIAL_REFUSALS:  # as if they were right: chances may be better than is believed
                number = max(offers, key=lambda number: offers[number][0])
                counts = self._choose({number: (1.0,) * len(offers[number])}, cost, min(budget, TRIAL_DRAFTS))
        self._stats.add_seconds(-self._acceptance.refuse(views, counts, step, cost.seconds()))
        if not counts:
            return []
        self._stats.steps += 1
        self._drafted[step] = cost, {number: asked[number][0].chances for number in counts}
        return [Allotment(number, count, asked[number][0].token_ids[:count]) for number, count in counts.items()]

    def _choose(self, offers: Mapping[int, tuple[float, ...]], cost: ExtendedStep, max_drafts: int) -> dict[int, int]:
        """Return the number of drafts for each sequence that has any. A step is as short as sequences need whose offers
        are not taken."""
        seconds = self._limit.seconds(offers)
        while True:
            counts = choose(offers, cost, max_drafts, seconds)
            shorter = self._limit.seconds(counts)
            if shorter >= seconds:
                return counts
            seconds = shorter

    def _ask(
        self, step: int, views: Sequence[SequenceView], rooms: Sequence[int]
    ) -> dict[int, tuple[Proposal, tuple[float, ...]]]:
        """Return drafts of the sequences that may have any, with the chance of each. rooms: limits of their number."""
        asked: dict[int, tuple[Proposal, tuple[float, ...]]] = {}
        for view, room in zip(views, rooms, strict=True):
            proposal = NOTHING
            if self._drafter is not None and room > 0:
                proposal = self._drafter.propose(view, room)
                room = len(proposal.token_ids)
                self._stats.asked += 1
                self._asked_step, self._asking = step, ROUND_SECONDS + ASK_SECONDS * len(views)
            if room > 0:
                asked[view.number] = proposal, self._acceptance.chances(view.number, proposal.chances, room)
        return asked

    # -- after it -----------------------------------------------------------------------------------------------

    def observe(self, plan: BatchPlan, work: Features, result: StepResult, round_seconds: float) -> None:
        step = plan.step
        if step % SAMPLED_STEPS and step > self._drafted_step + SAMPLED_STEPS and not self._drafted:
            return  # short steps are not to wait for what others teach as well
        drafted, behind_drafts = self._drafted.get(step), step - 1 == self._drafted_step
        self._drafted = {later: one for later, one in self._drafted.items() if later > step}
        if round_seconds and work.tokens == work.samples:
            gap = round_seconds - result.seconds - (self._asking if step == self._asked_step else 0.0)
            gaps = self._cost.drafted_gap if behind_drafts else self._cost.gap
            gaps.add(max(0.0, min(result.seconds, gap)))
        if result.error is None:
            self._cost.observe(work, result.seconds - result.draft_seconds)
            if drafted is not None:
                self._drafted_step = step
                self._learn(*drafted, plan, result)

    def _learn(self, cost: ExtendedStep, beliefs: Beliefs, plan: BatchPlan, result: StepResult) -> None:
        """Learn which drafts were right, and what that was worth. The planner may have had less room than was allotted,
        and the executor may have lacked what it drafts from."""
        right, drafted = 0, beliefs.keys() - set(result.undrafted)
        made = {one.sequence_id: one.num_drafts for one in plan.chunks if one.num_drafts and one.sequence_id in drafted}
        for sampled in result.sampled:
            number, count = sampled.sequence_id, len(sampled.token_ids) - 1
            if number in made and count >= 0:
                self._stats.add_chunk(made[number], count)
                self._acceptance.learn(number, beliefs[number], made[number], count)
                right += count
        if made and result.draft_seconds > 0:
            self._cost.observe_passes(max(made.values()), result.draft_seconds)
        won = right * (cost.seconds() + cost.gap) / cost.tokens
        lost = cost.seconds(sum(made.values())) - cost.seconds() + result.draft_seconds + cost.exposed
        self._stats.add_seconds(won - lost)
