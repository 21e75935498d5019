"""Sequences that fast-forward omits from its plans, and the blocks that are reserved for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from inflight.core.sequence import Sequence

TOKEN = 0  # what every token is


class OmittedTokens(Struct, frozen=True):
    """A request had one token in each of the steps first … last - 1."""

    request_id: str
    first: int
    last: int


@dataclass(slots=True, eq=False)
class Omitted:
    """An omitted sequence. first, last: steps of the first omitted decode and of its last token. updated: step that its
    counters are as of. block_step: the next one that takes or fills a block; where blocks are reserved, the first."""

    sequence: Sequence
    rank: tuple[float, int]
    first: int
    last: int
    updated: int
    block_step: int = 0

    def update(self, step: int) -> Sequence:
        """Bring the counters up to a step, where they are not as of a later one; return the sequence."""
        one = self.sequence
        if (tokens := step - self.updated) > 0:
            self.updated = step
            one.output += [TOKEN] * tokens
            one.num_tokens += tokens
            one.num_computed += tokens
            one.checker.passed(tokens)
        return one


class Memory(Protocol):
    """The scheduler's KV cache manager, as far as blocks are reserved."""

    @property
    def block_size(self) -> int: ...
    @property
    def take_blocks(self) -> Callable[[int], tuple[int, ...]]: ...


class ReservedBlocks:
    """Blocks of omitted sequences where requests share nothing: only their number matters, so that one is reserved for
    each sequence in the steps that begin one (from the first such step on, every `block_size` steps), and the sequence
    has them when it is included again."""

    def __init__(self, memory: Memory):
        self._memory = memory
        self._size = memory.block_size
        self._blocks: list[int] = []
        self._regular = [0] * self._size  # sequences that begin a block every so many steps, by the first's remainder
        self._num_regular = 0
        self._later: dict[int, int] = {}  # step → sequences that begin their first block in it, from when on they do

    def omit(self, first: int, step: int) -> None:
        """Add a sequence. first: the first step that begins a block of it. step: the next step."""
        if first < step + self._size:
            self._add(first, 1)
        else:
            self._later[first] = self._later.get(first, 0) + 1

    def due(self, step: int) -> int:
        """Return how many sequences begin a block in the next step."""
        return self._regular[step % self._size] + (self._later.get(step, 0) if self._later else 0)

    def reserve(self, begin: int, end: int) -> None:
        """Reserve the blocks of the steps begin … end - 1, which come next."""
        while self._later and (first := min(self._later)) < end:
            self._reserve(begin, first)
            self._add(first, self._later.pop(first))
            begin = first
        self._reserve(begin, end)

    def include(self, sequence: Sequence, first: int, step: int) -> None:
        """Remove a sequence, and give it the blocks that were reserved for it. first: as of `omit`. step: the next
        one whose blocks are not reserved yet."""
        if first in self._later:
            self._later[first] -= 1
            if not self._later[first]:
                del self._later[first]
            return
        self._add(first, -1)
        number = self._number(first, step)
        if number:
            sequence.blocks += self._blocks[-number:]
            del self._blocks[-number:]

    def next_step(self, first: int, step: int) -> int:
        """Return the first step, from this one on, that begins a block of a sequence."""
        return first + self._number(first, step) * self._size

    def _add(self, first: int, sequences: int) -> None:
        self._regular[first % self._size] += sequences
        self._num_regular += sequences

    def _reserve(self, begin: int, end: int) -> None:
        """Reserve the blocks of these steps of the sequences that begin one every so many steps."""
        rounds, rest = divmod(end - begin, self._size)
        count = rounds * self._num_regular
        for step in range(end - rest, end):
            count += self._regular[step % self._size]
        if count:
            self._blocks += self._memory.take_blocks(count)

    def _number(self, first: int, step: int) -> int:
        """Return how many steps before this one began a block of a sequence."""
        return max(0, -(-(step - first) // self._size))
