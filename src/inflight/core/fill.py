"""A plan under construction: the budget that is left, and the chunks so far. Knows the step's shape, takes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from inflight.core.plan import Chunk, Glided, NewRow
from inflight.core.sequence import Sequence
from inflight.core.strategies import StepShape


class Fill:
    __slots__ = ("budget", "chunks", "due", "glided", "lacks", "new_rows", "prompts", "served", "shape", "step", "used")

    def __init__(self, step: int, shape: StepShape):
        self.step = step
        self.shape = shape
        self.budget = shape.token_budget
        self.chunks: list[Chunk] = []
        self.new_rows: list[NewRow] = []
        self.prompts: list[Sequence] = []  # that run, in their order, as the step began
        self.served: set[int] = set()  # numbers of the sequences that have a chunk
        self.used: Counter[str] = Counter()  # prompt tokens by lane
        self.glided: Glided | None = None  # decodes without a chunk
        self.due: Set[Sequence] = frozenset()  # those of them that need or fill a block
        self.lacks: dict[str, str] = {}  # what the first that stays in a lane's queue waits for

    def has_room_for(self, sequence: Sequence, quota: int) -> bool:
        """Whether a newcomer may have tokens: some, or with whole prompts all of them, unless none has joined yet."""
        if min(self.budget, quota) <= 0:
            return False
        return not self.shape.whole_prompts or not self.new_rows or sequence.known <= self.budget

    def share(self, behind: int, quota: int, chunk: int | None) -> int:
        """Tokens that a sequence inside its prompt gets in this step."""
        if self.shape.whole_prompts:
            return behind
        most = min(self.budget, quota)
        return min(behind, most if chunk is None else min(most, chunk))

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.served.add(chunk.sequence_id)
        self.budget -= chunk.length

    def padding(self, rows: int) -> tuple[int, ...]:
        """What fills each of `rows` rows up to the longest chunk; rows without a chunk are padding from end to end."""
        longest = max(chunk.length for chunk in self.chunks)
        short = [longest - chunk.length for chunk in self.chunks if chunk.length < longest]
        return (*short, *[longest] * (rows - len(self.chunks)))
