"""Make token ids of a workload's prompts, where only lengths and shared contents are known.

Equal content ids give equal tokens; the rest of a prompt is its own. Tokens come from a hash of the seed and the
content's name, so that they are the same in every process, and any prompt can be made without the ones before it.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from inflight.workload.workload import Entry, WorkloadError

_DRAWS = {1: 1 << 8, 2: 1 << 16}  # values of the bytes that draw a token
_MAX_CACHED = 1 << 14  # shared blocks
BYTES_PER_TOKEN = 4  # of a text without a tokenizer


class Contents:
    """The prompts of a workload's entries, as token ids."""

    def __init__(
        self,
        entries: Sequence[Entry],
        vocab_size: int,
        *,
        seed: int = 0,
        min_id: int = 0,
        avoid: Collection[int] = (),
        encode: Callable[[str], Sequence[int]] | None = None,
        stand_in: bool = False,
        width: Literal[1, 2] = 2,
    ):
        """Make prompts for these entries.

        Args:
            vocab_size: ids are below it; of a larger vocabulary 65,536 ids are used, evenly spaced.
            min_id: the smallest id.
            avoid: ids that are not used (a tokenizer's special ones).
            encode: tokenizes prompts that are given as text.
            stand_in: only the lengths and the common beginnings of given prompts count: texts need no tokenizer, and
                ids that the vocabulary lacks are folded into it.
            width: bytes that draw a token; 1 uses ids below 256 alone, ten times as fast, where only equality counts.
        """
        unwanted = set(avoid)
        end = vocab_size if width == 2 else min(vocab_size, _DRAWS[1])
        usable = [token for token in range(min_id, end) if token not in unwanted]
        if not usable:
            raise WorkloadError(
                f"Of a vocabulary of {vocab_size} tokens none is left to make prompts of: {len(unwanted)} are to be "
                f"avoided, and those below {min_id}."
            )
        self._entries = entries
        self._seed = seed
        self._encode = encode
        self._stand_in = stand_in
        self._vocab_size = vocab_size
        draws = _DRAWS[width]
        self._width = width
        self._token = [usable[draw * len(usable) // draws] for draw in range(draws)]
        self._byte = bytes(self._token) if width == 1 else b""
        self._blocks: dict[tuple[int, int], bytes] = {}

    def prompt(self, index: int) -> tuple[int, ...]:
        """Return the prompt of an entry, prompt_tokens long where the trace has none; of a later turn that the trace
        has, only what it adds."""
        entry = self._entries[index]
        if isinstance(entry.prompt, tuple):
            folds = self._stand_in and max(entry.prompt, default=0) >= self._vocab_size
            return tuple([token % self._vocab_size for token in entry.prompt]) if folds else entry.prompt
        if entry.prompt is not None:
            if self._stand_in:
                return self._stood_in_for(index, entry, entry.prompt)
            if self._encode is None:
                raise WorkloadError(
                    f"The prompt of request {index} is text; a tokenizer is needed to make tokens of it."
                )
            return tuple(self._encode(entry.prompt))
        return self._made(index, entry)

    def added(self, index: int) -> tuple[int, ...]:
        """Return what a later turn adds to the conversation so far with its real answers, at least one token; of other
        entries, the prompt."""
        entry = self._entries[index]
        if entry.after is None or entry.prompt is not None:
            return self.prompt(index)
        before = self._entries[entry.after]
        so_far = before.prompt_tokens + before.output_tokens
        return self._made(index, entry, min(so_far, entry.prompt_tokens - 1))

    def _stood_in_for(self, index: int, entry: Entry, text: str) -> tuple[int, ...]:
        """Return as many tokens as the entry has (a later turn: adds), from the text's bytes as far as they go."""
        before = self._entries[entry.after] if entry.after is not None else None
        wanted = entry.prompt_tokens - (before.prompt_tokens + before.output_tokens if before is not None else 0)
        raw = text.encode("utf-8", "replace")[: BYTES_PER_TOKEN * max(1, wanted)]
        pieces = (raw[start : start + BYTES_PER_TOKEN] for start in range(0, len(raw), BYTES_PER_TOKEN))
        tokens = tuple([self._token[zlib.crc32(piece) % len(self._token)] for piece in pieces])
        return tokens + self._made(index, entry)[: max(0, wanted - len(tokens))]

    def _made(self, index: int, entry: Entry, start: int = 0) -> tuple[int, ...]:
        """Return the made-up tokens from this position on."""
        wanted, size = self._width * entry.prompt_tokens, entry.block_size
        passed = min(start // size, len(entry.prefix)) if size else 0  # whole blocks before the start
        drawn = b"".join([self._block(content, size) for content in entry.prefix[passed:]])
        made = self._width * passed * size + len(drawn)
        if made < wanted:
            drawn += _bytes(f"{self._seed}/own/{index}", wanted - made)
        drawn = drawn[self._width * (start - passed * size) : len(drawn) - max(0, made - wanted)]
        if self._width == 1:
            return tuple(drawn.translate(self._byte))
        draws = array("H", drawn)
        if sys.byteorder == "big":
            draws.byteswap()
        return tuple(map(self._token.__getitem__, draws))

    def _block(self, content: int, size: int) -> bytes:
        block = self._blocks.get((content, size))
        if block is None:
            if len(self._blocks) >= _MAX_CACHED:
                self._blocks.clear()
            block = self._blocks[content, size] = _bytes(f"{self._seed}/shared/{content}", self._width * size)
        return block


def _bytes(name: str, length: int) -> bytes:
    return hashlib.shake_128(name.encode()).digest(length)
