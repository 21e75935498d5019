"""What each token adds to the text, as UTF-8 bytes.

Knows the decoders that `tokenizer.json` can name, and from them how a token turns into bytes: byte-level BPE (each
character of the token stands for one byte), byte fallback (`<0xE4>` is one byte), and everything else, where the
library is asked what a token adds after another one. Does not know streams, or when bytes become characters
(`detokenizer`).

Why bytes: a character may be spread over several tokens, and only bytes say exactly whether it can still be completed.
The decoded string cannot: there, half a character and a U+FFFD that the model wrote look the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from inflight.text.errors import LibraryFaults, TokenizerError

if TYPE_CHECKING:
    import tokenizers

    from inflight.text.compiled_tokenizer import CompiledTokenizer

_UNDECODABLE = "\ufffd"


class TokenPieces:
    """The bytes of every token of one tokenizer, worked out at first use and kept; safe to share between streams."""

    def __init__(self, backend: tokenizers.Tokenizer | CompiledTokenizer) -> None:
        parts = parts_of(backend.decoder, "decoders")
        kinds = [part["type"] for part in parts]
        self._backend = backend
        self._byte_of_character = byte_level_alphabet() if kinds == ["ByteLevel"] else None
        self._has_byte_fallback = "ByteFallback" in kinds
        # An unknown decoder may look at the token before, so what it adds must be asked for each pair anew.
        self._is_context_free = self._byte_of_character is not None or _looks_only_for_the_first_token(parts)
        self._inside: dict[int, bytes | None] = {}

    @property
    def marks_each_byte(self) -> bool:
        """Whether a broken character yields one U+FFFD per byte (byte fallback) or one per attempt (byte-level)."""
        return self._byte_of_character is None

    def after(self, token_id: int, previous: int | None) -> bytes | None:
        """The bytes that `token_id` adds after `previous` (None: it is the first, where a leading space may vanish).

        None stands for ids without a token, as in embeddings padded to a round size: they add nothing at all. A token
        that the model's own decoder fails on is one U+FFFD: streams and stop strings must not end with it.
        """
        if previous is None or not self._is_context_free:
            return self._work_out(token_id, previous)
        try:
            return self._inside[token_id]
        except KeyError:
            piece = self._inside[token_id] = self._work_out(token_id, previous)
            return piece

    def inside(self, token_id: int) -> bytes | None:
        """The bytes that `token_id` adds in the middle of a text; None if there is no such token."""
        return self.after(token_id, token_id)

    def _work_out(self, token_id: int, previous: int | None) -> bytes | None:
        token = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None:
            return None
        if self._byte_of_character is not None:
            return _byte_level_bytes(token, self._byte_of_character)
        value = _fallback_byte(token) if self._has_byte_fallback else None
        # A first token that is a space of its own is left to the library, whose decoder may strip it.
        if value is not None and (previous is not None or value > 0x7F):
            return bytes((value,))
        return self._asked(token_id, previous).encode()

    def _asked(self, token_id: int, previous: int | None) -> str:
        """What the library says that a token adds; by itself, where it fails on the one before."""
        try:
            if previous is not None:
                before, both = self._decode([previous]), self._decode([previous, token_id])
                if both.startswith(before):
                    return both.removeprefix(before)
        except TokenizerError:
            pass
        try:
            return self._decode([token_id])
        except TokenizerError:
            return _UNDECODABLE

    def _decode(self, token_ids: list[int]) -> str:
        with LibraryFaults("The tokenizer's decoder fails"):
            return self._backend.decode(token_ids, skip_special_tokens=False)


def parts_of(component: Any, several: str) -> list[dict[str, Any]]:
    """A decoder, normalizer or pre-tokenizer as `tokenizer.json` spells it, a sequence laid out flat; empty without
    one. several: what a sequence calls its parts."""
    if component is None:
        return []
    # The library shows a component's settings only in its pickle state, which is the JSON of tokenizer.json.
    return _flat(json.loads(component.__getstate__()), several)


def _flat(state: dict[str, Any], several: str) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [part for inner in state[several] for part in _flat(inner, several)]


def _looks_only_for_the_first_token(parts: list[dict[str, Any]]) -> bool:
    """Whether a decoder treats all tokens alike but the first: true of what sentencepiece models are exported with.

    Up to Fuse its parts work on single tokens; after it, on the whole text, of which Strip takes at most one space.
    """
    kinds = [part["type"] for part in parts]
    end = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    strips = parts[end + 1 :]
    return (
        bool(parts)
        and all(kind in ("Replace", "ByteFallback", "Strip", "Metaspace") for kind in kinds[:end])
        and all(part["type"] == "Strip" and part["start"] <= 1 and part["stop"] == 0 for part in strips)
        and len(strips) <= 1
    )


def _byte_level_bytes(token: str, byte_of_character: dict[str, int]) -> bytes:
    """Added tokens are written as plain text; the library tells them apart by a character outside the alphabet."""
    try:
        return bytes([byte_of_character[character] for character in token])
    except KeyError:
        return token.encode()


def _fallback_byte(token: str) -> int | None:
    """The byte a token such as `<0xE4>` stands for, else None."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the other 68 for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
