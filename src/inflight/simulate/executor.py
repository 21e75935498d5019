"""The simulated executor: a device with a capacity and a step model, which samples TOKEN everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate, takewhile
from operator import add

from msgspec import structs

from inflight.core.types.executor import Done, Pending
from inflight.core.types.features import Features
from inflight.core.types.features import features as features_of
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, Sampled, Scored, StepResult, Transferred
from inflight.core.types.sampling import TokenLogprob
from inflight.simulate.condensed_plan import AlikeSteps, CondensedPlan
from inflight.simulate.drafting import SimulatedDrafts
from inflight.simulate.fitted import NoisyModel
from inflight.simulate.omitted import TOKEN
from inflight.simulate.steps import DecodeSeconds, StepModel
from inflight.simulate.transfers import TimedTransfers
from inflight.testing.suspension import StepSuspender, SuspendedStep

_TOKENS = (TOKEN,)
FIRST_FORESEEN = 16  # steps
MANY_FORESEEN = 64  # where the model has the seconds of many decodes at once
LAYERS = 24  # between which a step may be suspended


@dataclass(slots=True)
class ForeseenSteps:
    """Steps that are known beforehand, as far as they are foreseen. seconds: of each. times: when each is planned, and
    when the last one is committed; of steps that are planned behind one in flight, when the step before it is."""

    alike: AlikeSteps
    times: list[float]
    seconds: list[float]

    @property
    def complete(self) -> bool:
        return len(self.seconds) == self.alike.steps

    @property
    def due(self) -> float:
        """When more happens: what comes after them begins, the last of them begins, at whose commit sequences end, or
        more of them are to be foreseen."""
        return self.times[-2 if self.alike.ends and not self.alike.behind and self.complete else -1]


class _OmittedStep(Done):
    """A step that samples nothing. It comes to stand for a later one, where the steps up to that are skipped."""

    def stand_for(self, seconds: float) -> None:
        """Take so many seconds, as the later step."""
        self._result = structs.replace(self._result, seconds=seconds)


class _StepWithTransfers(Done):
    """A step whose transfers depend on when its result is asked for. on_result: called then."""

    def __init__(self, result: StepResult, on_result: Callable[[], None]):
        super().__init__(result)
        self._on_result = on_result

    def result(self) -> StepResult:
        self._on_result()
        return super().result()


class SimulatedExecutor(StepSuspender):
    """Computes plans in no time, and says how long they take."""

    def __init__(
        self,
        capacity: Capacity,
        model: StepModel,
        drafts: SimulatedDrafts | None = None,
        timed: TimedTransfers | None = None,
        copy_seconds: float | None = None,
    ):
        """Make an executor.

        Args:
            drafts: those of the executor itself; None: it makes none.
            timed: transfers that take time beside the steps; None: transfers end with their steps.
            copy_seconds: of each block that is copied to the host or back within a step, instead of the model's.
        """
        self.timed = timed
        self.awaits_transfer = False  # whether a poll waits for one, and none had ended
        self._copy_seconds = copy_seconds
        self.capacity = capacity
        self._model, self._drafts = model, drafts
        self._count: Callable[[Features], None] | None = getattr(model, "count", None)
        self._decode_seconds: DecodeSeconds | None = getattr(model, "decode_seconds", None)
        self.extrapolated: dict[str, int] = {}  # sentence of the first step → steps outside of the model's ranges
        self.busy = 0.0  # seconds of steps
        self.steps = 0
        self._last: _OmittedStep | None = None  # the step that was submitted last, if it samples nothing
        self._transfers: dict[int, bool] = {}  # transfers that are out → whether their step is computed

    def take_step(self, features: Features) -> float:
        """Count one more step and return its seconds."""
        seconds = self._model.seconds(features)
        self.busy += seconds
        self.steps += 1
        if self._count is not None:
            self._count(features)
        if (sentence := self._model.extrapolates(features)) is not None:
            self._count_extrapolated(sentence)
        return seconds

    def _count_extrapolated(self, sentence: str) -> None:
        first = next(iter(self.extrapolated), sentence)
        self.extrapolated[first] = self.extrapolated.get(first, 0) + 1

    def foresee(self, coming: AlikeSteps, now: float, until: float = math.inf) -> ForeseenSteps | None:
        """Foresee the first of these steps, if they are computed from now on; none is counted yet.

        Args:
            coming: Steps that are alike.
            now: Seconds on the engine's clock.
            until: When the next request comes.

        Returns:
            None where the step in flight cannot stand for them.
        """
        if coming.behind and self._last is None:
            return None
        foreseen = ForeseenSteps(coming, [now], [])
        self.foresee_more(foreseen, until)
        return foreseen

    def foresee_more(self, foreseen: ForeseenSteps, until: float = math.inf) -> None:
        """Foresee as many steps again, and a few at first; none that begins after `until`, when the next request comes,
        since that may make it useless. Of many decodes at once, whose seconds cost little more than those of one, as
        many as begin before it, and some more.
        """
        alike, times, known = foreseen.alike, foreseen.times, len(foreseen.seconds)
        before = self._last.result().seconds if alike.behind and self._last is not None else None
        if self._decode_seconds is not None and not alike.chunk:
            self._foresee_decodes(self._decode_seconds, foreseen, before)
            while not foreseen.complete and times[-1] < until < math.inf:
                self._foresee_decodes(self._decode_seconds, foreseen, before)
            return
        for index in range(known, min(alike.steps, max(FIRST_FORESEEN, 2 * known))):
            foreseen.seconds.append(self._model.seconds(alike.features(index)))
            if before is None:
                times.append(times[-1] + foreseen.seconds[index])
            else:
                times.append(times[-1] + (foreseen.seconds[index - 1] if index else before))
            if times[-1] >= until:
                return

    def _foresee_decodes(self, seconds_of: DecodeSeconds, foreseen: ForeseenSteps, before: float | None) -> None:
        """Foresee many steps of decodes at once. before: seconds of the step in flight; None: there is none."""
        alike, times, known = foreseen.alike, foreseen.times, len(foreseen.seconds)
        most = min(alike.steps, max(MANY_FORESEEN, 2 * known))
        contexts = range(alike.context + known * alike.rows, alike.context + most * alike.rows, alike.rows)
        foreseen.seconds += seconds_of(alike.rows, contexts)
        rounds = foreseen.seconds if before is None else [before, *foreseen.seconds]
        times += accumulate(rounds[known:most], initial=times.pop())  # to the bit as if each were taken alone

    def compute(self, foreseen: ForeseenSteps, steps: int) -> None:
        """Count the first so many foreseen steps; the others do not happen, since their batches change."""
        features = foreseen.alike.features
        if self._count is not None:
            for index in range(steps):
                self._count(features(index))
        # Contexts grow, so that the last step is outside of the model's ranges where any is.
        if steps and self._model.extrapolates(features(steps - 1)) is not None:
            for index in range(steps):
                if (sentence := self._model.extrapolates(features(index))) is not None:
                    self._count_extrapolated(sentence)
        self.busy = reduce(add, foreseen.seconds[:steps], self.busy)  # to the bit as if each had been taken alone
        self.steps += steps
        if foreseen.alike.behind and self._last is not None and steps:
            self._last.stand_for(foreseen.seconds[steps - 1])
        if isinstance(self._model, NoisyModel):
            self._model.draw_again(len(foreseen.seconds) - steps)

    def submit(self, plan: BatchPlan) -> Pending:
        features = features_of(plan)
        if isinstance(plan, CondensedPlan):
            features = plan.all_features(features)
            if not plan.chunks and not plan.transfers and self.timed is None:
                self._last = _OmittedStep(StepResult(plan.step, (), self.take_step(features)))
                return self._last
        self._last = None
        plain = self.timed is None and self._copy_seconds is None
        seconds = self.take_step(features) if plain else self._take_step_with_copies(features)
        draft_seconds = self._draft_seconds(plan)
        self.busy += draft_seconds
        sampled = tuple(
            [
                Sampled(chunk.sequence_id, _TOKENS if chunk.sample == 1 else self._verified(chunk))
                for chunk in plan.chunks
                if chunk.sample
            ]
        )
        scored = tuple(
            [
                Scored(chunk.sequence_id, chunk.score.start + 1, tuple(TokenLogprob(TOKEN, 0.0) for _ in chunk.score))
                for chunk in plan.chunks
                if chunk.score
            ]
        )
        result = StepResult(plan.step, sampled, seconds + draft_seconds, scored=scored, draft_seconds=draft_seconds)
        if plan.adapter_loads:
            self._transfers |= {load.transfer_id: True for load in plan.adapter_loads}
        if plan.may_suspend and self._is_due is not None and self.timed is None:
            return self._begin_suspendable(SuspendedStep(result.seconds, LAYERS, lambda seconds: result))
        if self.timed is not None:
            self.awaits_transfer = False
            self.timed.begin(plan, result.seconds)
            return _StepWithTransfers(result, partial(self.timed.begin_step, result.seconds))
        if plan.transfers and self.capacity.asynchronous_transfers:
            transfer_ids = [one.transfer_id for one in plan.transfers]
            self._transfers |= dict.fromkeys(transfer_ids, False)
            return _StepWithTransfers(result, partial(self._transfers.update, dict.fromkeys(transfer_ids, True)))
        if not (sampled or scored or plan.transfers):
            self._last = _OmittedStep(result)
            return self._last
        return Done(result)

    def _take_step_with_copies(self, features: Features) -> float:
        """Count a step with copies. A plan of transfers alone computes nothing; asynchronous copies take no time."""
        copies = 0.0
        if self.capacity.asynchronous_transfers:
            features = structs.replace(features, moved_blocks=0)
        elif self._copy_seconds is not None:
            copies = self._copy_seconds * features.moved_blocks
            features = structs.replace(features, moved_blocks=0)
        self.busy += copies
        if features.rows or features.moved_blocks:
            return copies + self.take_step(features)
        self.steps += 1
        return copies

    def _verified(self, chunk: Chunk) -> tuple[int, ...]:
        """Return the tokens of a chunk with drafts: known ones are accepted while they are TOKEN, others by chance."""
        if self._drafts is None or chunk.draft_token_ids:
            return _TOKENS * (1 + len([*takewhile(TOKEN.__eq__, chunk.draft_token_ids)]))
        drafts, number, first = self._drafts, chunk.sequence_id, chunk.start + 1
        return _TOKENS * (1 + drafts.acceptance.accepted(drafts.seed, number, first, chunk.num_drafts))

    def _draft_seconds(self, plan: BatchPlan) -> float:
        """Return the seconds of drafting; all rows draft at once, token by token."""
        if self._drafts is None:
            return 0.0
        longest = max((chunk.num_drafts for chunk in plan.chunks if not chunk.draft_token_ids), default=0)
        return self._drafts.pass_seconds * longest

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        """Return the transfers that have ended: with their step, or when the engine waits for nothing else. Adapters
        are loaded after the step that they are loaded with."""
        if self.timed is not None:
            return self._poll_timed(self.timed, seconds)
        if not self._transfers:
            return None
        ended = [transfer_id for transfer_id, computed in self._transfers.items() if computed or seconds]
        for transfer_id in ended:
            del self._transfers[transfer_id]
        return tuple(map(Transferred, ended))

    def _poll_timed(self, timed: TimedTransfers, seconds: float) -> tuple[Transferred, ...] | None:
        if not timed.out:
            return None
        ended = timed.drain_ended()
        self.awaits_transfer = seconds > 0 and not ended
        return ended

    def close(self) -> None:
        """Do nothing: there are no resources."""
