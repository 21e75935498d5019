"""Blocks that are reserved for omitted sequences, by remainder of their steps, are those that each takes by itself."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from inflight.simulate.omitted import ReservedBlocks


class Blocks:
    """A KV cache of endless blocks."""

    def __init__(self, block_size: int):
        self.block_size, self.taken = block_size, 0

    def take_blocks(self, number: int) -> tuple[int, ...]:
        first, self.taken = self.taken, self.taken + number
        return tuple(range(first, self.taken))


@dataclass
class Taker:
    """A sequence that takes its blocks itself, in each step that begins one."""

    first: int
    sequence: Any
    num_blocks: int = 0


class TakenBlocks:
    """The slow twin: sequences by number, each asked in each step."""

    def __init__(self, block_size: int):
        self.size, self.step = block_size, 0
        self.takers: dict[int, Taker] = {}

    def begins_block(self, one: Taker, step: int) -> bool:
        return step >= one.first and (step - one.first) % self.size == 0

    def due(self) -> int:
        return sum(self.begins_block(one, self.step) for one in self.takers.values())

    def next_step(self, one: Taker) -> int:
        return next(step for step in count(self.step) if self.begins_block(one, step))

    def advance(self, steps: int) -> None:
        for step in range(self.step, self.step + steps):
            for one in self.takers.values():
                one.num_blocks += self.begins_block(one, step)
        self.step += steps


@given(st.data(), st.integers(1, 6))
def test_reserved_blocks_are_those_that_each_sequence_takes(data: st.DataObject, block_size: int) -> None:
    memory, twin, numbers = Blocks(block_size), TakenBlocks(block_size), count()
    reserved, given_back = ReservedBlocks(memory), list[int]()
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["omit", "omit", "advance", "include"])):
            case "omit":
                one = Taker(twin.step + data.draw(st.integers(0, 3 * block_size)), SimpleNamespace(blocks=[]))
                reserved.omit(one.first, twin.step)
                twin.takers[next(numbers)] = one
            case "advance":
                steps = data.draw(st.integers(1, 4 * block_size))
                reserved.reserve(twin.step, twin.step + steps)
                twin.advance(steps)
            case "include" if twin.takers:
                one = twin.takers.pop(data.draw(st.sampled_from(sorted(twin.takers))))
                reserved.include(one.sequence, one.first, twin.step)
                assert len(one.sequence.blocks) == one.num_blocks
                given_back += one.sequence.blocks
        assert reserved.due(twin.step) == twin.due()
        assert memory.taken == len(given_back) + sum(one.num_blocks for one in twin.takers.values())
        for one in twin.takers.values():
            assert reserved.next_step(one.first, twin.step) == twin.next_step(one)
    for one in twin.takers.values():
        reserved.include(one.sequence, one.first, twin.step)
        given_back += one.sequence.blocks
    assert sorted(given_back) == list(range(memory.taken)), "a block is lost, or given twice"
