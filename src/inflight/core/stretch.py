"""A stretch of pure decode, taken at once: many steps that differ in nothing but one more token of each sequence.

While nobody waits, no sequence ends and blocks are there, a step follows from the one before it, and a simulator may
take several together: `find` says how many, `take` does to sequences and blocks what so many plans and commits would
have done, block by block in their order. What scheduling would have learnt of step times, and what it would have
expected of the lengths of answers, is left out, so that this is only for schedulers that nobody asks for either
(`simulate` sees to that). A real engine never calls it.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from inflight.core.features import Features
from inflight.core.lanes import Lanes
from inflight.core.ledger import OTHER
from inflight.core.memory import KVMemory
from inflight.core.policies.fcfs import Fcfs
from inflight.core.running import Running
from inflight.core.sequence import Sequence

LEAST = 2  # steps that are worth it


@dataclass(frozen=True, slots=True)
class Stretch:
    """most: steps that may be taken together."""

    sequences: tuple[Sequence, ...]
    most: int

    @property
    def request_ids(self) -> list[str]:
        return [one.request.request_id for one in self.sequences]

    def features(self) -> Features:
        """Of the first step; each later one reads one position more for each sequence."""
        rows = len(self.sequences)
        return Features(rows, rows, rows, sum(one.computed + 1 for one in self.sequences), 0.0)


def find(running: Running, lanes: Lanes, memory: KVMemory, token_budget: int) -> Stretch | None:
    """None where the next step is not one of many that are alike. No plan may be in flight."""
    sequences = running.sequences
    if not sequences or len(lanes) or len(sequences) > token_budget:
        return None
    lane = lanes.of(sequences[0])
    if not isinstance(lane.queue.policy, Fcfs) or lane.settings.weight != 1 or lane.settings.background:
        return None
    each = (memory.pool.available // len(sequences) - 1) * memory.block_size
    most = min(each, *(_steps(one) for one in sequences))
    if most < LEAST or any(lanes.of(one) is not lane for one in sequences):
        return None
    return Stretch(tuple(sequences), most)


def _steps(sequence: Sequence) -> int:
    """Decodes of it that are surely nothing else: it has its first token, and does not end."""
    if not sequence.output or sequence.behind != 1 or sequence.computed < sequence.lost or sequence.condemned:
        return 0
    return sequence.checker.surely


def take(stretch: Stretch, steps: int, token: int, memory: KVMemory) -> None:
    """Every sequence of the stretch is `steps` tokens further, each of them `token`.

    New blocks are taken and full ones published in the order of plans: by step, then by the order of sequences."""
    size = memory.block_size
    changes: list[tuple[int, int, bool]] = []  # step, place of the sequence, whether it is full after it
    for place, one in enumerate(stretch.sequences):
        changes += [(step, place, False) for step in range(len(one.blocks) * size - one.computed, steps, size)]
        changes += [(step, place, True) for step in range(-(one.computed + 1) % size, steps, size)]
    starts = [one.computed for one in stretch.sequences]
    tokens = [token] * steps
    for one in stretch.sequences:
        one.output += tokens
        one.known += steps
        one.checker.passed(steps)
    for step, place, full in sorted(changes):
        one = stretch.sequences[place]
        one.computed = starts[place] + step + full
        if full:
            memory.publish(one)
        else:
            memory.grow(one, one.computed + 1)
    for one, start in zip(stretch.sequences, starts, strict=True):
        one.computed = start + steps


def stand_by(lanes: Lanes, served: int, times: Items[float]) -> None:
    """At all of these times nobody waited; one lane was served so many tokens."""
    for lane in lanes.all():
        lane.clock.charge(times[0], OTHER, lane.settings.name)
        lane.clock.charge(times[-1], OTHER, lane.settings.name)
        if lane.running:
            lane.served(served)
