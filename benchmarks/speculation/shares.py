"""The share of a step's time that deciding on drafts takes: controller, drafter, and what is learnt of them.

What the planner does around them is not counted, and is small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.contest import ON
from benchmarks.speculation.corpus import Part, read
from benchmarks.speculation.engine import MODEL_LEN, ScriptedEngine, blocks
from inflight.config.assembly import budget, make_rules, make_scheduler, make_speculation
from inflight.config.engine import EngineSettings
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import Allotment, DraftCandidate, Speculation, SpeculationStats
from inflight.core.types.features import Features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult
from inflight.engine.clock import Clock
from inflight.execution.backends.protocol import Quantization
from inflight.execution.drafters.suffix import SuffixDrafter

MAX_SHARE = 0.005  # of a step without drafts
Answer = TypeVar("Answer")


class TimedSpeculation(Speculation):
    """deciding: seconds of calls in steps without drafts, of this thread's processor time. seconds: of those steps,
    from one to the next."""

    def __init__(self, speculation: Speculation, clock: Clock):
        self._speculation, self._clock = speculation, clock
        self._of_step, self._last = 0.0, clock.now()
        self.deciding = self.seconds = 0.0
        self.steps = 0

    def began(self, view: SequenceView) -> None:
        self._timed(lambda: self._speculation.began(view))

    def waits(self, step: int) -> bool:
        return self._timed(lambda: self._speculation.waits(step))

    def due(self, step: int) -> Collection[int] | None:
        return self._timed(lambda: self._speculation.due(step))

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> Collection[int]:
        return self._timed(lambda: self._speculation.hold_back(step, views, running))

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[DraftCandidate], budget: int
    ) -> list[Allotment]:
        return self._timed(lambda: self._speculation.allot(step, chunks, candidates, budget))

    def observe(self, plan: BatchPlan, work: Features, result: StepResult, round_seconds: float) -> None:
        self._timed(lambda: self._speculation.observe(plan, work, result, round_seconds))
        now = self._clock.now()
        if not any(chunk.num_drafts for chunk in plan.chunks):
            self.steps += 1
            self.deciding += self._of_step
            self.seconds += now - self._last
        self._of_step, self._last = 0.0, now

    def finished(self, view: SequenceView) -> None:
        self._timed(lambda: self._speculation.finished(view))

    def stats(self) -> SpeculationStats | None:
        return self._speculation.stats()

    def _timed(self, call: Callable[[], Answer]) -> Answer:
        began = time.thread_time()
        answer = call()
        ended = time.thread_time()
        self._of_step += ended - began - (time.thread_time() - ended)
        return answer


def report(
    models: Sequence[tuple[str, Quantization]],
    batches: Sequence[int],
    legs: int,
    part: Part,
    threads: int | None,
    clock: Clock,
) -> str:
    rows: list[list[object]] = []
    for name, quantization in models:
        model = Model(name, blocks(max(batches)), MODEL_LEN, quantization, threads)
        for number in batches:
            timed = _run(model, number, legs, part, clock)
            each = timed.deciding / timed.steps
            share = timed.deciding / timed.seconds
            cells = [f"{each * 1e6:.1f}", f"{timed.seconds / timed.steps * 1e3:.2f}", f"{share:.2%}"]
            rows.append([model.name, number, f"{timed.steps:,}", *cells, f"≤ {MAX_SHARE:.1%}"])
    said = (
        "What the controller and the drafter take in steps without drafts, on text that does not repeat: mean times "
        f"over {legs} answers of each row and more, this thread's processor time. Texts: the {part} half of the corpus."
    )
    head = ["model", "rows", "steps without drafts", "deciding, µs", "step, ms", "share", "asked"]
    return f"{said}\n\n{table(head, rows)}"


def _run(model: Model, rows: int, legs: int, part: Part, clock: Clock) -> TimedSpeculation:
    pairs = read("different", part)
    settings = EngineSettings(max_model_len=MODEL_LEN, num_blocks=blocks(rows), max_num_seqs=rows)
    executor = model.executor(settings, ON)
    capacity = executor.capacity
    rules = make_rules(ON, budget(settings, ON), capacity.max_model_len, capacity.max_rows)
    timed = TimedSpeculation(make_speculation(SuffixDrafter(), ON, rules, capacity.vocab_size), clock)
    scheduler = make_scheduler(capacity, rules, settings, ON, speculation=timed)
    tried = ScriptedEngine(executor, scheduler, pairs, clock)
    tried.run_tokens(rows, legs * sum(len(pair.answer) for pair in pairs) * rows // len(pairs))
    return timed
