"""An engine on a clock of its own, whose answers are known and whose steps take what a formula says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.speculation.acceptance import ASK_SECONDS, READ_SECONDS, ROUND_SECONDS
from inflight.core.speculation.controller import SpeculationController
from inflight.core.speculation.speculation import ExecutorDrafter, Proposal, Speculation
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, Sampled, StepResult
from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import SamplingParams

VOCABULARY = 1000
CAPACITY = Capacity(num_blocks=4000, block_size=16, max_rows=64, max_model_len=4096, vocab_size=VOCABULARY)

Right = Callable[[int, int], bool]  # (sequence, place in its output) → whether a draft of that token is right


def token_at(sequence: int, place: int) -> int:
    """Return a token of a sequence's output."""
    return (sequence * 7919 + place * 104729 + 1) % VOCABULARY


@dataclass
class Foreseeing:
    """A drafter that is right where it is said to be, and believes in it so much. seconds: that it took for answers,
    as the controller estimates them; read: tokens of each sequence that it was shown."""

    right: Right
    sure: float = 0.7
    most: int = 8
    name: str = "foreseeing"
    asked: int = 0
    seconds: float = 0.0
    read: dict[int, int] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)

    def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
        self.asked += 1
        known = view.prompt_tokens + view.output_tokens
        self.seconds += ASK_SECONDS + READ_SECONDS * (known - self.read.get(view.number, 0))
        self.read[view.number] = known
        places = range(view.output_tokens, view.output_tokens + min(max_drafts, self.most))
        token_ids = tuple(token_at(view.number, one) ^ (not self.right(view.number, one)) for one in places)
        return Proposal(token_ids, (self.sure,) * len(token_ids))

    def finished(self, view: SequenceView) -> None:
        self.ended.append(view.number)


@dataclass
class Device:
    """Steps by a formula of rows and tokens. pass_seconds: of drafting for one place, where it drafts itself.
    catches_up: tokens that it computes before it drafts, of each sequence that it lacks some of, and in a step of all
    together; who lacks more has no drafts. 0: it lacks none. lacked: chunks so far that had none."""

    seconds: Callable[[int], float]
    right: Right = lambda sequence, place: False
    pass_seconds: float = 0.0
    catches_up: int = 0
    computed: dict[int, int] = field(default_factory=dict)  # positions, by sequence
    lacked: int = 0

    def run(self, plan: BatchPlan, output_of: Callable[[int], int]) -> StepResult:
        sampled, passes = [], 0
        undrafted = self._undrafted(plan)
        self.lacked += len(undrafted)
        for chunk in plan.chunks:
            if chunk.sample:
                output, lacks = output_of(chunk.sequence_id), chunk.sequence_id in undrafted
                sampled.append(Sampled(chunk.sequence_id, self._sample(chunk, output, lacks)))
            if chunk.num_drafts and not chunk.draft_token_ids:
                passes = max(passes, chunk.num_drafts)
        drafting = passes * self.pass_seconds
        seconds = self.seconds(plan.tokens) + drafting
        return StepResult(plan.step, tuple(sampled), seconds, draft_seconds=drafting, undrafted=undrafted)

    def _undrafted(self, plan: BatchPlan) -> tuple[int, ...]:
        """As a draft model's: those that lack least come first."""
        if not self.catches_up:
            return ()
        lacking = [
            (chunk.start + 1 - self.computed.get(chunk.sequence_id, 0), chunk)
            for chunk in plan.chunks
            if chunk.num_drafts
        ]
        room, found = self.catches_up, []
        for count, chunk in sorted(lacking, key=lambda one: one[0]):
            if count > room:
                found.append(chunk.sequence_id)
            taken = min(count, room)
            self.computed[chunk.sequence_id] = chunk.start + 1 - count + taken
            room -= taken
        return tuple(found)

    def _sample(self, chunk: Chunk, first: int, lacks: bool) -> tuple[int, ...]:
        tokens = [token_at(chunk.sequence_id, first)]
        while not lacks and len(tokens) <= chunk.num_drafts and self._is_right(chunk, len(tokens) - 1, first):
            tokens.append(token_at(chunk.sequence_id, first + len(tokens)))
        return tuple(tokens)

    def _is_right(self, chunk: Chunk, draft: int, first: int) -> bool:
        if chunk.draft_token_ids:
            return chunk.draft_token_ids[draft] == token_at(chunk.sequence_id, first + draft)
        return self.right(chunk.sequence_id, first + draft)


class Rig:
    """depth, between: as the engine's loop; seconds that pass between the commit of a step and the next plan. Questions
    to the drafter take time where no step runs meanwhile."""

    def __init__(
        self,
        device: Device,
        drafter: Foreseeing | ExecutorDrafter | None = None,
        speculation: Speculation | None = None,
        depth: int = 1,
        between: float = 0.0,
        capacity: Capacity = CAPACITY,
    ):
        latency = LatencyModel()
        if drafter is not None:
            speculation = SpeculationController(drafter, latency, 8)
        self.scheduler = Scheduler(
            SchedulerConfig(capacity, Chunked(512), Fcfs(), token_budget=512, latency=latency, speculation=speculation)
        )
        self.now = 0.0
        self.plans: list[BatchPlan] = []
        self.ended = 0
        self._device, self._drafter, self._depth, self._between = device, drafter, depth, between
        self._output: dict[int, int] = {}
        self._flights: list[tuple[BatchPlan, StepResult]] = []
        self._count = 0

    def add(
        self, count: int, output: int, prompt: int = 8, itl: float | None = None, tpot: float | None = None
    ) -> None:
        for _ in range(count):
            params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0)
            request = Request(
                request_id=str(self._count),
                prompt_token_ids=tuple(place % VOCABULARY for place in range(prompt)),
                params=params,
                slo=SLO(itl=itl, tpot=tpot),
                arrival=self.now,
            )
            self.scheduler.add(request, self.now)
            self._count += 1

    def step(self) -> None:
        """One round of the loop: steps run one after the other, and plans are made while one runs."""
        while len(self._flights) < self._depth:
            plan = self._plan()
            if not isinstance(plan, BatchPlan):
                break
            self.plans.append(plan)
            self._flights.append((plan, None))  # type: ignore[arg-type]
        if not self._flights:
            return
        plan, _ = self._flights.pop(0)
        result = self._device.run(plan, lambda number: self._output.get(number, 0))
        self.now += result.seconds + (0.0 if self._flights else self._between)
        for one in result.sampled:
            self._output[one.sequence_id] = self._output.get(one.sequence_id, 0) + len(one.token_ids)
        events = self.scheduler.commit(plan, result, self.now)
        self.ended += sum(isinstance(event, FinishedEvent) for event in events)
        self.tokens_of(events)

    def _plan(self) -> object:
        asked = self._drafter.seconds if isinstance(self._drafter, Foreseeing) else 0.0
        plan = self.scheduler.plan(self.now)
        if isinstance(self._drafter, Foreseeing) and self._drafter.seconds > asked and not self._flights:
            self.now += self._drafter.seconds - asked + ROUND_SECONDS
        return plan

    def tokens_of(self, events: object) -> None:
        """Check that the tokens are those of the sequence."""
        for event in events:  # type: ignore[attr-defined]
            if isinstance(event, TokensEvent):
                number = int(event.request_id)
                last = self._output[number]
                assert event.token_ids[-1] in {token_at(number, place) for place in range(last - 9, last)}

    def until_done(self) -> float:
        """Seconds."""
        while not self.scheduler.idle:
            self.step()
        return self.now

    def drafts(self) -> Iterator[int]:
        """Yield the drafts of each chunk of each plan."""
        return (chunk.num_drafts for plan in self.plans for chunk in plan.chunks)
