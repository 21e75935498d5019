"""The speculation controller: drafts where they bring tokens, and almost nothing elsewhere.

Each step it asks the drafter for the sequences that are due, weighs their drafts against what they cost, and learns
from the result. No clock is read here: the same steps with the same durations have the same drafts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from itertools import accumulate
from operator import mul

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.speculation.asking import ASK_SECONDS, NO_SEQUENCES, Answers, DraftQuestions
from inflight.core.speculation.drafter import Drafter, ExecutorDrafter
from inflight.core.speculation.goodput import (
    REFUSAL_DECAY,
    Acceptance,
    ExtendedStep,
    Offer,
    SequenceAcceptance,
    StepCost,
    choose,
)
from inflight.core.speculation.speculation import (
    ITL_SHARE,
    MAX_DRAFTS,
    Allotment,
    Candidate,
    Speculation,
    SpeculationStats,
    SpeculationTally,
)
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

FIRST_TOKEN_SLACK = 0.005  # by which drafts may lengthen a step that computes prompts
LOOKAHEAD = 4  # drafts that are considered behind a token that is still being computed
SAMPLED_STEPS = 16  # of steps without drafts, one in so many teaches what steps cost
CERTAIN_DRAFTS = (1, 2, 4, 8)  # numbers of drafts that are tried for whether right ones would pay
TRIAL_DRAFTS = 2
MIN_REFUSALS, MAX_REFUSALS = 3, 24  # steps with drafts of which all were refused, before a trial


class _DraftedStep(Struct):
    """A step with drafts, until its result is there. tokens: that it yields without drafts. beliefs: by sequence."""

    cost: ExtendedStep
    tokens: int
    beliefs: dict[int, tuple[float, ...]]


class SpeculationController(Speculation):
    def __init__(self, drafter: Drafter | ExecutorDrafter, latency: LatencyModel, max_drafts: int = MAX_DRAFTS):
        """Create a controller.

        Args:
            drafter: Makes drafts when a step is planned, or stands for the executor.
            latency: The scheduler's model of step time, which learns by itself.
            max_drafts: Drafts of a sequence in a step.
        """
        self._in_executor = isinstance(drafter, ExecutorDrafter)
        self._max_drafts = min(max_drafts, drafter.max_drafts) if isinstance(drafter, ExecutorDrafter) else max_drafts
        self._questions = asked = DraftQuestions(drafter)
        self._choose = partial(choose, asking=(asked.round_seconds, asked.ask_seconds), makes_passes=self._in_executor)
        self._cost = StepCost(latency)
        self._acceptance = Acceptance()
        self._sequences: dict[int, SequenceAcceptance] = {}
        self._itl_targets: dict[int, float] = {}  # of running sequences that have one
        self._drafted: dict[int, _DraftedStep] = {}  # by step
        self._step = self._drafted_step = -1  # the last whose result is there; the last of these that had drafts
        self._prompt_step = -1  # the last step with candidates that computed prompts
        self._refusals, self._trial_refusals = 0, MIN_REFUSALS  # steps in a row; how many until a trial
        self._tally = SpeculationTally(drafter.name)

    def began(self, view: SequenceView) -> None:
        self._sequences[view.number] = SequenceAcceptance()
        if view.itl_target is not None:
            self._itl_targets[view.number] = view.itl_target
        self._questions.begin(view.number, self._step)

    def finished(self, view: SequenceView) -> None:
        self._sequences.pop(view.number, None)
        self._itl_targets.pop(view.number, None)
        self._questions.finish(view)

    def waits(self, step: int) -> bool:
        return step - 1 in self._drafted

    def due(self, step: int) -> Collection[int]:
        return self._questions.due(step) if self._cost.ready else NO_SEQUENCES

    def stats(self) -> SpeculationStats:
        return self._tally.stats(self._questions.asked)

    # -- before a step ------------------------------------------------------------------------------------------

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> Collection[int]:
        """Ask for drafts behind the token that is being computed. A sequence that is left out has no token meanwhile;
        where all are, only the scheduling is exposed."""
        if self._prompt_step == step - 1:  # a long prompt fills several steps
            return NO_SEQUENCES
        context = sum([view.prompt_tokens + view.output_tokens for view in views]) * running // len(views)
        cost = self._cost.extended(Features(running, running, running, context, 0.0))
        rooms = [min(1 + LOOKAHEAD, view.max_output_tokens - view.output_tokens - 1) for view in views]
        answers = self._ask(step, list(map(Candidate, views, rooms)), cost, running)
        if answers is None:
            return NO_SEQUENCES
        offers = self._offers(answers, 0 if self._in_executor else 1)  # an executor knows nothing of tokens to come
        lost = min(1.0, cost.exposed / cost.seconds) if len(offers) == running and cost.seconds else 1.0
        worth = [offer for offer in offers if sum(accumulate(offer.chances, mul)) > lost]
        held = self._choose(worth, running, cost, MAX_DRAFTS * running, self._max_seconds())
        self._close(step, answers, held, cost)
        return held

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        work, tokens = features(BatchPlan(step, tuple(chunks))), sum([chunk.sample > 0 for chunk in chunks])
        cost, max_seconds = self._cost.extended(work), self._max_seconds()
        if work.tokens != work.samples:  # it computes prompts, whose first tokens are not to wait for drafts
            self._prompt_step = step
            asking = self._questions.expected_seconds(len(candidates))
            max_seconds = min(max_seconds, (1 + FIRST_TOKEN_SLACK) * cost.seconds - asking)
            if cost.seconds + cost.extra(1) > max_seconds:
                return []
        candidates = [Candidate(view, min(room, budget, self._max_drafts)) for view, room in candidates]
        answers = self._ask(step, candidates, cost, tokens)
        if answers is None:
            return []
        offers = self._offers(answers)
        counts = self._choose(offers, tokens, cost, budget, max_seconds)
        if offers and not counts:
            counts = self._try_refused(offers, cost, budget, max_seconds)
        self._close(step, answers, counts, cost)
        if not counts:
            return []
        self._tally.steps += 1
        proposals = answers.proposals
        self._drafted[step] = _DraftedStep(cost, tokens, {number: proposals[number].chances for number in counts})
        return [Allotment(number, count, proposals[number].token_ids[:count]) for number, count in counts.items()]

    def _ask(self, step: int, candidates: Sequence[Candidate], cost: ExtendedStep, tokens: int) -> Answers | None:
        """Ask for drafts of these sequences, or have them pause if even right ones would not pay."""
        each_token = (cost.seconds + cost.gap) / max(1, tokens)
        asking = cost.pass_seconds if self._in_executor else ASK_SECONDS
        if any(count * each_token > cost.extra(count) + asking for count in CERTAIN_DRAFTS):
            return self._questions.ask(candidates, cost.seconds)
        self._questions.pause([view.number for view, _ in candidates], step)
        return None

    def _offers(self, answers: Answers, first: int = 0) -> list[Offer]:
        """Return the drafts from this position on, with their chances."""
        chances, sequences, proposals = self._acceptance.chances, self._sequences, answers.proposals
        return [
            Offer(number, chances(sequences[number], proposals[number].chances, drafts)[first:])
            for number, drafts in answers.drafts.items()
        ]

    def _max_seconds(self) -> float:
        """Return what the ITL targets of the running sequences leave for a step."""
        return ITL_SHARE * min(self._itl_targets.values()) if self._itl_targets else math.inf

    def _try_refused(
        self, offers: list[Offer], cost: ExtendedStep, max_drafts: int, max_seconds: float
    ) -> dict[int, int]:
        """Count a step that refused all drafts, and after some choose the likeliest ones: chances and costs may be
        better than they are believed to be."""
        self._refusals += 1
        number, chances = max(offers, key=lambda offer: offer.chances[0])
        drafts = min(TRIAL_DRAFTS, len(chances), max_drafts)
        seconds = cost.extra(drafts) + (drafts * cost.pass_seconds if self._in_executor else 0.0)
        if self._refusals < self._trial_refusals or cost.seconds + seconds > max_seconds:
            return {}
        self._prompt_step = -1
        self._refusals, self._trial_refusals = 0, min(2 * self._trial_refusals, MAX_REFUSALS)
        return {number: drafts}

    def _close(self, step: int, answers: Answers, chosen: Collection[int], cost: ExtendedStep) -> None:
        """Record what was chosen of the answers."""
        for number in answers.drafts:
            if number not in chosen:
                self._sequences[number].fade(REFUSAL_DECAY)
        self._tally.add_seconds(-self._questions.close(step, answers, chosen, cost.seconds))

    # -- after it -----------------------------------------------------------------------------------------------

    def observe(self, plan: BatchPlan, work: Features, result: StepResult, round_seconds: float) -> None:
        step, asked = plan.step, self._questions.outstanding
        self._step = step
        if step % SAMPLED_STEPS and step > self._drafted_step + SAMPLED_STEPS and not (self._drafted or asked):
            return  # short steps are not to wait for what others teach as well
        drafted = self._drafted.get(step)
        if round_seconds and work.tokens == work.samples:
            gap = min(result.seconds, round_seconds - result.seconds - self._questions.seconds(step))
            self._cost.observe_gap(max(0.0, gap), behind_drafts=step - 1 == self._drafted_step)
        self._drafted = {later: one for later, one in self._drafted.items() if later > step}
        self._questions.drop_until(step)
        if result.error is not None:
            return
        self._cost.observe(work, result.seconds - result.draft_seconds)
        if drafted is not None:
            self._drafted_step = step
            self._learn(drafted, plan, result)

    def _learn(self, drafted: _DraftedStep, plan: BatchPlan, result: StepResult) -> None:
        """Learn which drafts were right, and what that was worth. The planner may have had less room than was allotted,
        and the executor may have lacked what it drafts from."""
        beliefs, cost = drafted.beliefs, drafted.cost
        made = {one.sequence_id: one.num_drafts for one in plan.chunks if one.num_drafts and one.sequence_id in beliefs}
        made = {number: count for number, count in made.items() if number not in result.undrafted}
        right: dict[int, int] = {}
        for sampled in result.sampled:
            number, count = sampled.sequence_id, len(sampled.token_ids) - 1
            if number not in made or number not in self._sequences or count < 0:
                continue
            self._tally.add_chunk(made[number], count)
            self._acceptance.learn(self._sequences[number], beliefs[number], made[number], count)
            if count:
                right[number] = count
        self._questions.record_right(right)
        drafting = min(result.draft_seconds, self._cost.pass_seconds)  # the executor was catching up, unless it drafted
        if made and result.draft_seconds > 0:
            drafting = self._cost.observe_passes(max(made.values()), result.draft_seconds)
        won = sum(right.values()) * (cost.seconds + cost.gap) / max(1, drafted.tokens)
        won -= cost.extra(sum(made.values())) + drafting + cost.exposed
        self._trial_refusals = MIN_REFUSALS if won > 0 else self._trial_refusals
        self._tally.add_seconds(won)
