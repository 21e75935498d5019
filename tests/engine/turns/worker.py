"""A process that takes turns: a script, which computes nothing but time, and shouts where it does so beside another.

Knows the table that it is told of, and a board that all workers and the test share: who computes now, how often two did
at once, and each place's seconds.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from dataclasses import asdict, dataclass

from inflight.engine.turns.step_turns import StepTurns
from inflight.engine.turns.table import TurnDescriptors, TurnTable

COMPUTES, OVERLAPS, IS_READY, SECONDS, WIDTH = 0, 1, 2, 10, 18
LAYER_SECONDS = 0.0005


@dataclass(frozen=True)
class Task:
    """does: "compute", for ever; "hold" the turn for ever; "lock" the table for ever. pause: seconds between two steps.
    forgiven: of a place that may have died while it computed."""

    table: TurnDescriptors
    board: int
    place: int
    weight: float = 1.0
    urgent: bool = True
    does: str = "compute"
    layers: int = 40
    pause: float = 0.0
    forgiven: int = -1

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Task:
        told = json.loads(text)
        return cls(**{**told, "table": TurnDescriptors(**told["table"])})


def board_of(descriptor: int) -> memoryview:
    return memoryview(mmap.mmap(descriptor, WIDTH * 8)).cast("d")


def compute_layer(board: memoryview, task: Task) -> None:
    mine, began = task.place + 1, time.monotonic()
    if board[COMPUTES] not in (0, task.forgiven + 1):
        board[OVERLAPS] += 1
    board[COMPUTES] = mine
    while (now := time.monotonic()) < began + LAYER_SECONDS:
        if board[COMPUTES] != mine:
            board[OVERLAPS] += 1
    board[COMPUTES] = 0
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
