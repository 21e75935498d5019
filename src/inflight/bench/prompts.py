"""Prompts of exact length: token ids, or texts that have as many tokens as an entry says.

Knows what entries share (equal blocks of a prefix are equal tokens or words) and what a conversation already holds; not
how a body is written. Contents come from a seed and the entry's place, so that every process of the client writes the
same; those of token ids are made by `workload.contents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from inflight.bench.counting import Counter, Messages
from inflight.bench.words import FIRST, Vocabulary, corrected, write
from inflight.workload.contents import Contents
from inflight.workload.workload import Entry


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Ids that prompts are drawn from: from first to below last, but those to avoid."""

    first: int
    last: int
    avoid: frozenset[int] = frozenset()

    def contents(self, entries: Sequence[Entry], seed: int) -> Contents:
        return Contents(entries, self.last, seed=seed, floor=self.first, avoid=self.avoid)

    @property
    def some(self) -> list[int]:
        """Four of them, from both ends."""
        usable = [token for token in range(self.first, self.last) if token not in self.avoid]
        return [usable[place * (len(usable) - 1) // 3] for place in range(4)]


def ordinary(vocab_size: int) -> TokenRange:
    """Without those at both ends, where tokenizers keep special tokens."""
    return TokenRange(min(1000, vocab_size // 10), vocab_size - vocab_size // 10)


def continued(contents: Contents, index: int, before: tuple[int, ...]) -> tuple[int, ...]:
    """The prompt of entry `index` behind the conversation so far: as long as the entry says, one token at least new."""
    prompt = contents.prompt(index)
    return (*before, *prompt[min(len(before), len(prompt) - 1) :]) if before else prompt


@dataclass(frozen=True)
class TextPrompts:
    """vocabulary: of the model's tokenizer. counter: checks every text, where it lies here; None: texts are as long as
    the vocabulary says, and the server's own count tells whether that was right.

    around: tokens that come to a prompt's text (beginning token, or the chat template with one message). each_turn:
    that come to every further turn of a conversation.
    """

    vocabulary: Vocabulary
    seed: int
    around: int
    each_turn: int = 0
    counter: Counter | None = None

    def text(self, index: int, entry: Entry, tokens: int) -> str:
        """About `tokens` tokens of content; those of the entry's prefix first.

        It always begins with the same word, because only of that one it is known what it costs without a word before.
        """
        parts = [FIRST]
        left = tokens - 1
        for block in entry.prefix:
            if left <= 0:
                break
            size = min(entry.block_size - (len(parts) == 1), left)
            parts.append(write(self.vocabulary, size, Random(f"{self.seed}/block/{block}")))
            left -= size
        if left > 0:
            parts.append(write(self.vocabulary, left, Random(f"{self.seed}/own/{index}")))
        return " ".join(filter(None, parts))

    def completion(self, index: int, entry: Entry, before: str, before_tokens: int) -> str:
        """What follows `before`; together they have the entry's tokens."""
        if before:
            entry = _alone(entry)
        fresh = " " * bool(before) + self.text(index, entry, self._left(entry, before_tokens or self.around))
        if self.counter is None or entry.prompt_tokens <= self.around:
            return fresh
        if before and self.counter.text(before) >= entry.prompt_tokens:
            return fresh
        return corrected(fresh, entry.prompt_tokens, self.counter.text, before)

    def chat(self, index: int, entry: Entry, before: Messages, before_tokens: int) -> str:
        """The content of the user's next message."""
        if before:
            entry = _alone(entry)
        overhead = before_tokens + self.each_turn if before else self.around
        fresh = self.text(index, entry, self._left(entry, overhead))
        if self.counter is None or entry.prompt_tokens <= self.around:
            return fresh
        counter = self.counter
        shortest = counter.chat([*before, {"role": "user", "content": "a"}])
        if shortest is None or shortest >= entry.prompt_tokens:
            return fresh

        def count(content: str) -> int:
            return counter.chat([*before, {"role": "user", "content": content}]) or 0

        return corrected(fresh, entry.prompt_tokens, count)

    @staticmethod
    def _left(entry: Entry, taken: int) -> int:
        return max(entry.prompt_tokens - taken, 1)


def _alone(entry: Entry) -> Entry:
    """A later turn: what its prefix stands for is the conversation itself."""
    return replace(entry, prefix=())
