"""A draft model with a known chance of being right: whether it brings what the formula says.

A step with k drafts of each of B rows yields E = (1 - a^(k + 1)) / (1 - a) tokens a row, where each draft is right with
chance a. Verifying takes T(B(k + 1)) and making takes k passes of the draft model, c times T(B) each, so that decodes
are E / (T(B(k + 1)) / T(B) + k · c) times as fast (Leviathan et al., arXiv 2211.17192, with what verifying costs). The
right side is measured of each model by itself, step by step; the left is an engine with drafts against one without, in
turns. That the answers are the same is asserted, token by token.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import log_line
from benchmarks.draft_pair import PairShape, write_pair
from benchmarks.results import table
from benchmarks.speculation.legs import Leg, in_turns, speed_up, with_interval
from benchmarks.speculation.step_costs import BLOCK, WIDTH, Rows
from inflight.config.engine import EngineSettings
from inflight.config.threads import resolve_threads
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.speculation.speculation import ExecutorDrafter
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import TokensEvent
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import Clock
from inflight.engine.loop import EngineLoop
from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import Backend
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.drafters.draft_kv import DraftKV
from inflight.execution.drafters.draft_model import DraftModel
from inflight.execution.drafters.draft_model_source import draft_kv_shape
from inflight.execution.memory import kv_shape
from inflight.execution.model import Model as ForwardPasses
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder
from inflight.testing.eager_speculation import EagerSpeculation

SHAPE = PairShape(hidden_size=768, inner_size=2304, heads=12, kv_heads=4, layers=20, draft_layers=2)
PROMPT, ANSWER = 32, 256  # tokens
LENGTH = WIDTH * BLOCK
WITHIN = 0.10  # of what the formula says


@dataclass(frozen=True, slots=True)
class Formula:
    """verifying: T(B(k + 1)) / T(B). pass_cost: c."""

    expected: float
    verifying: float
    pass_cost: float
    drafts: int

    @property
    def speed_up(self) -> float:
        return self.expected / (self.verifying + self.drafts * self.pass_cost)


class DraftPair:
    """A model and its draft model, loaded once, for so many rows at most."""

    def __init__(self, folder: Path, rows: int, most: int, threads: int | None):
        self.backend: Backend = open_backend("bfloat16", int(resolve_threads(EngineSettings(threads=threads)).value))
        self.specs = [read_folder(one, to_run=True) for one in write_pair(folder, SHAPE)]
        tokens = max(rows * (1 + most), PROMPT + rows)
        self.decoders = []
        for spec, name in zip(self.specs, ("model", "draft"), strict=True):
            weights = load_weights(spec, Checkpoint(folder / name), self.backend, LENGTH)
            self.decoders.append(ForwardPasses(spec, weights, self.backend, tokens, 32))
        self.capacity = Capacity(rows * WIDTH, BLOCK, rows, LENGTH, SHAPE.vocab_size)

    def alone(self, place: int) -> ModelRunner:
        """One of both, 0 the model, without drafts."""
        cache = self.backend.kv_cache(kv_shape(self.specs[place], BLOCK), self.capacity.num_blocks + 1)
        return ModelRunner(self.decoders[place], self.backend, cache, self.capacity)

    def drafting(self) -> ModelRunner:
        shape = kv_shape(self.specs[0], BLOCK)
        kv = DraftKV(self.backend, draft_kv_shape(self.specs[1], shape), self.capacity)
        cache = self.backend.kv_cache(shape, self.capacity.num_blocks + 1)
        drafter = DraftModel(self.decoders[1], self.backend, kv)
        return ModelRunner(self.decoders[0], self.backend, cache, self.capacity, drafter=drafter)


class Parts:
    """Measure each part of the formula by itself. times: of steps without drafts, that verify them, and of the draft
    model."""

    def __init__(self, pair: DraftPair, rows: int, drafts: int, clock: Clock):
        self._model, self._draft = (Rows(pair.alone(place), rows, clock) for place in (0, 1))
        self._drafts = drafts
        self._times: list[tuple[float, float, float]] = []
        self.measure()
        self._times.clear()  # the first touches memory

    def measure(self) -> None:
        """Once more."""
        plain, verifying = self._model.seconds(0), self._model.seconds(self._drafts)
        self._times.append((plain, verifying, self._draft.seconds(0)))

    def formula(self) -> Formula:
        return Formula(
            SHAPE.expected_tokens(self._drafts),
            statistics.median(verifying / plain for plain, verifying, _ in self._times),
            statistics.median(drafting / plain for plain, _, drafting in self._times),
            self._drafts,
        )


class DecodingEngine:
    """Answers requests of its own, at temperature 1, a batch at a time; decodes alone are timed."""

    def __init__(self, runner: ModelRunner, rows: int, drafts: int, clock: Clock):
        """drafts: in every step; 0: there is no speculation."""
        speculation = EagerSpeculation(ExecutorDrafter("draft-model", drafts), drafts) if drafts else None
        scheduler = Scheduler(SchedulerConfig(runner.capacity, Chunked(PROMPT + rows), Fcfs(), speculation=speculation))
        self._loop, self._rows, self._clock = EngineLoop(scheduler, runner, clock), rows, clock
        self.said: dict[str, list[int]] = {}

    def leg(self, number: int) -> Leg:
        """A batch: the same for every engine."""
        for row in range(self._rows):
            prompt = tuple((number * 97 + row * 31 + at * 7) % 2000 for at in range(PROMPT))
            params = SamplingParams(temperature=1.0, max_tokens=ANSWER, ignore_eos=True)
            self._loop.add(Request(request_id=f"{number} {row}", prompt_token_ids=prompt, params=params, seed=row))
        seconds, tokens, began = 0.0, 0, set[str]()
        while not self._loop.idle:
            all_decode, at = len(began) == self._rows, self._clock.now()
            events = self._loop.advance()
            seconds += (self._clock.now() - at) * all_decode
            assert isinstance(events, list)
            for event in events:
                if isinstance(event, TokensEvent):
                    began.add(event.request_id)
                    self.said.setdefault(event.request_id, []).extend(event.token_ids)
                    tokens += len(event.token_ids) * all_decode
        return Leg(seconds, tokens)


def report(batches: Sequence[int], drafts: Sequence[int], legs: int, threads: int | None, clock: Clock) -> str:
    cells: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        pair = DraftPair(Path(folder), max(batches), max(drafts), threads)
        for rows in batches:
            for number in drafts:
                cells.append(_row(pair, rows, number, legs, clock))
    head = ["rows", "k", "E", "T(B(k + 1)) / T(B)", "c", "the formula", "measured", "measured over it", "asked"]
    said = (
        f"{SHAPE.layers} layers of {SHAPE.hidden_size}, drafted for by the first {SHAPE.draft_layers} of them, a = "
        f"{SHAPE.acceptance:.3f}; k drafts in every step, temperature 1, {ANSWER} tokens, decodes alone, {legs} legs "
        "in turns with an engine without drafts; 95 % intervals. All answers were the same, token by token."
    )
    return f"{said}\n\n{table(head, cells)}"


def _row(pair: DraftPair, rows: int, drafts: int, legs: int, clock: Clock) -> list[object]:
    with_drafts = DecodingEngine(pair.drafting(), rows, drafts, clock)
    without = DecodingEngine(pair.alone(0), rows, 0, clock)
    first, second = iter(range(legs)), iter(range(legs))
    parts = Parts(pair, rows, drafts, clock)

    def plain_leg() -> Leg:
        for _ in range(4):  # beside the legs, so that a machine whose speed drifts is the same to both sides
            parts.measure()
        return without.leg(next(second))

    ones, others = in_turns(lambda: with_drafts.leg(next(first)), plain_leg, legs)
    assert with_drafts.said == without.said, "drafts changed an answer"
    found, formula = speed_up(ones, others), parts.formula()
    over = found.mean / formula.speed_up
    log_line(f"{rows} rows, {drafts} drafts: {with_interval(found)}, the formula says {formula.speed_up:.3f}")
    cells = [f"{one:.2f}" for one in (formula.expected, formula.verifying, formula.pass_cost, formula.speed_up)]
    return [rows, drafts, *cells, with_interval(found), f"{over:.2f}", f"{1 - WITHIN:.2f} to {1 + WITHIN:.2f}"]
