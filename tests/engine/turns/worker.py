"""A process that takes turns: a script, which computes nothing but time, and shouts where it does so beside another.

Knows the table that it is told of, and a board that all workers and the test share: how often two computed at once,
and each place's seconds. Who computes has a lock on a byte of the table's file that the table does not know: of a
process that is killed within a layer it falls together with the mark that the process lives, and not a moment later,
so that whoever has its turn then is beside nobody.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import sys
import time
from dataclasses import asdict, dataclass

from inflight.engine.turns.step_turns import StepTurns
from inflight.engine.turns.table import TurnDescriptors, TurnTable

OVERLAPS, IS_READY, SECONDS, WIDTH = 0, 1, 9, 17  # places on the board
COMPUTES_BYTE = 1000  # of the table's file
LAYER_SECONDS = 0.0005


@dataclass(frozen=True)
class Task:
    """does: "compute", for ever; "hold" the turn for ever; "lock" the table for ever. pause: seconds between two
    steps."""

    table: TurnDescriptors
    board: int
    place: int
    weight: float = 1.0
    urgent: bool = True
    does: str = "compute"
    layers: int = 40
    pause: float = 0.0

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Task:
        told = json.loads(text)
        return cls(**{**told, "table": TurnDescriptors(**told["table"])})


def board_of(descriptor: int) -> memoryview:
    return memoryview(mmap.mmap(descriptor, WIDTH * 8)).cast("d")


def computes(table: TurnDescriptors) -> bool:
    """Whether this process may say from now on that it computes; False: another one does."""
    try:
        fcntl.lockf(table.table, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, COMPUTES_BYTE)
    except (BlockingIOError, PermissionError):
        return False
    return True


def rests(table: TurnDescriptors) -> None:
    fcntl.lockf(table.table, fcntl.LOCK_UN, 1, COMPUTES_BYTE)


def compute_layer(board: memoryview, task: Task) -> None:
    began = time.monotonic()
    is_alone = computes(task.table)
    board[OVERLAPS] += not is_alone
    while (now := time.monotonic()) < began + LAYER_SECONDS:
        pass
    if is_alone:
        rests(task.table)
    board[SECONDS + task.place] += now - began


def main() -> None:
    task = Task.of(sys.argv[1])
    board, table = board_of(task.board), TurnTable(task.table)
    turns = StepTurns(table, task.place, task.weight)
    if task.does == "lock":
        table.__enter__()
    if task.does == "hold":
        turns.take(lambda: task.urgent)
    board[IS_READY + task.place] = 1
    while task.does != "compute":
        time.sleep(1)
    while True:
        turns.take(lambda: task.urgent)
        for layer in range(task.layers):
            if layer:
                turns.pass_on()
            compute_layer(board, task)
        turns.give(returns=task.urgent and not task.pause)
        if task.pause:
            time.sleep(task.pause)


if __name__ == "__main__":
    main()
