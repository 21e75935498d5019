"""Speculation on a device, with as many steps in flight as it has: `auto` against `off`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from benchmarks.gpu.model import BLOCK, DrawnModel, Limits
from benchmarks.results import table
from benchmarks.speculation.contest import HEAD, OFF, ON, between, cells_of
from benchmarks.speculation.corpus import Kind, Pair, read
from benchmarks.speculation.engine import MODEL_LEN, ScriptedEngine, blocks
from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.speculation.speculation import Drafter
from inflight.engine.clock import MonotonicClock
from inflight.execution.drafters.suffix import SuffixDrafter
from inflight.execution.graphs import warm_up


def contest(model: DrawnModel, batches: Sequence[int], legs: int, leg_tokens: int) -> str:
    """batches: rising. leg_tokens: of each row in a leg."""
    said = (
        f"With a vocabulary of {model.spec.vocab_size:,}, that of the texts: a script's mask over 128,256 tokens for "
        "each position would be work that no served answer makes. Tokens a second with `--speculation auto` over those "
        f"with `off`, prompts included, in {legs} legs each of {leg_tokens} tokens a row that ran in turns, "
        f"{model.backend.depth} steps in flight; in brackets 95 % intervals. Texts: the held-out half of the corpus. "
        "All answers were the same, token by token."
    )
    cells = [cells for kind in get_args(Kind) for cells in _of_kind(model, batches, kind, legs, leg_tokens)]
    return f"{said}\n\n{table(HEAD, cells)}"


def _of_kind(
    model: DrawnModel, batches: Sequence[int], kind: Kind, legs: int, leg_tokens: int
) -> Iterator[list[object]]:
    """One pair of engines for all batches, of which each has more rows than the last."""
    pairs = read(kind, "held-out")
    with_drafts = _engine(model, max(batches), pairs, ON, SuffixDrafter())
    without = _engine(model, max(batches), pairs, OFF, None)
    for rows in batches:
        yield cells_of(between(with_drafts, without, rows, kind, legs, rows * leg_tokens))


def _engine(
    model: DrawnModel, rows: int, pairs: Sequence[Pair], scheduling: SchedulingSettings, drafter: Drafter | None
) -> ScriptedEngine:
    limits = Limits(rows, MODEL_LEN, model.limits.pass_tokens, blocks(rows) * BLOCK)
    executor, captured = model.beside(limits)
    warm_up(captured, executor, 60.0)
    settings = EngineSettings(
        max_num_seqs=rows, max_model_len=MODEL_LEN, max_num_batched_tokens=min(2048, model.limits.pass_tokens)
    )
    scheduler = scheduler_for(executor.capacity, settings, scheduling, drafter=drafter)
    return ScriptedEngine(executor, scheduler, pairs, MonotonicClock(), model.backend.depth)
