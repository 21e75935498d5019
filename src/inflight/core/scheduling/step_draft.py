"""A plan under construction: the budget that is left, and the chunks so far. Knows the step's shape, takes nothing.

`budget` is what is left for anybody, `left` what is left for prompts: less where the step ends early, because a prompt
is complete.
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

from msgspec import structs

from inflight.core.sequence import Sequence
from inflight.core.strategies import StepShape
from inflight.core.types.plan import Chunk, NewRequest


class StepDraft:
    __slots__ = (
        *("budget", "chunks", "completes", "decodes", "lacks", "new_requests", "prompts", "served", "shape"),
        *("step", "used"),
    )

    def __init__(self, step: int, shape: StepShape):
        self.step = step
        self.completes = False  # a foreground prompt, so that its first token waits for this step's end
        self.shape = shape
        self.budget = shape.token_budget
        self.chunks: list[Chunk] = []
        self.new_requests: list[NewRequest] = []
        self.decodes: list[Sequence] = []  # those that run and need one token, in their order, as the step began
        self.prompts: list[Sequence] = []  # those that need more
        self.served: set[int] = set()  # numbers of the sequences that have a chunk
        self.used: Counter[str] = Counter()  # prompt tokens by lane
        self.lacks: dict[str, str] = {}  # what the first that stays in a lane's queue waits for

    def left(self, quota: int, kept: int) -> int:
        """Tokens of a lane's `quota` that its prompts may have now; `kept` of them even where the step ends early."""
        most = min(self.budget, quota)
        if not (self.completes and self.shape.early_end):
            return most
        tokens = self.shape.token_budget - self.budget
        return min(most, max(kept, self.shape.early_end - tokens))

    def has_room_for(self, sequence: Sequence, left: int) -> bool:
        """Whether a newcomer may have tokens: some, or with whole prompts all of them, unless none has joined yet."""
        if left <= 0:
            return False
        return not self.shape.whole_prompts or not self.new_requests or sequence.num_tokens <= self.budget

    def share(self, behind: int, left: int, chunk: int | None) -> int:
        """Tokens that a sequence inside its prompt gets in this step."""
        if self.shape.whole_prompts:
            return behind
        return min(behind, left if chunk is None else min(left, chunk))

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.served.add(chunk.sequence_id)
        self.budget -= chunk.length

    def tell_blocks(self, new_blocks: tuple[int, ...], window_blocks: tuple[tuple[int, ...], ...]) -> None:
        """With the chunk that was added last."""
        self.chunks[-1] = structs.replace(self.chunks[-1], new_blocks=new_blocks, window_blocks=window_blocks)

    def add_drafts(
        self,
        place: int,
        count: int,
        token_ids: tuple[int, ...],
        new_blocks: tuple[int, ...],
        window_blocks: tuple[tuple[int, ...], ...],
    ) -> None:
        """`count` of them to the chunk that stands there: these, or what the executor makes itself."""
        chunk = self.chunks[place]
        self.chunks[place] = structs.replace(
            chunk,
            length=chunk.length + count,
            new_blocks=chunk.new_blocks + new_blocks,
            sample=chunk.sample + count,
            draft_token_ids=token_ids,
            num_drafts=count,
            window_blocks=tuple(a + b for a, b in zip_longest(chunk.window_blocks, window_blocks, fillvalue=())),
        )
        self.budget -= count

    def padding(self, rows: int) -> tuple[int, ...]:
        """What fills each of `rows` rows up to the longest chunk; rows without a chunk are padding from end to end."""
        longest = max(chunk.length for chunk in self.chunks)
        short = [longest - chunk.length for chunk in self.chunks if chunk.length < longest]
        return (*short, *[longest] * (rows - len(self.chunks)))
