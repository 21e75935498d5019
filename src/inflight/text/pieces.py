"""Compute the bytes that each token adds to the text, in UTF-8, by the decoder of `tokenizer.json`.

In byte-level BPE each character of a token is one byte; in byte fallback `<0xE4>` is one byte; in all other cases the
library decodes the token after the one before.

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
    """The bytes of every token of one tokenizer, computed at first use and cached; safe to share between streams."""

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
        """Whether an invalid character becomes one U+FFFD per byte (byte fallback) or per attempt (byte-level)."""
        return self._byte_of_character is None

    def after(self, token_id: int, previous: int | None) -> bytes | None:
        """Return the bytes that a token adds after `previous`; None: an id without a token, as in padded embeddings.

        Args:
            token_id: Of the token. If the model's decoder fails on it, it is one U+FFFD, so that streams go on.
            previous: The token before; None: it is the first, where a leading space may be dropped.
        """
        if previous is None or not self._is_context_free:
            return self._work_out(token_id, previous)
        try:
            return self._inside[token_id]
        except KeyError:
            piece = self._inside[token_id] = self._work_out(token_id, previous)
            return piece

    def inside(self, token_id: int) -> bytes | None:
        """Return the bytes that a token adds in the middle of a text; None: there is no such token."""
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
        """Return the text that a token adds by the library; decoded alone if the library fails on the one before."""
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
    """Return the parts of a decoder, normalizer or pre-tokenizer in the form of `tokenizer.json`, sequences flattened.

    Args:
        component: None: no parts.
        several: Key of a sequence's parts.
    """
    if component is None:
        return []
    # The library shows a component's settings only in its pickle state, which is the JSON of tokenizer.json.
    return _flat(json.loads(component.__getstate__()), several)


def _flat(state: dict[str, Any], several: str) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [part for inner in state[several] for part in _flat(inner, several)]


def _looks_only_for_the_first_token(parts: list[dict[str, Any]]) -> bool:
    """Return whether a decoder treats all tokens alike except the first, as those of sentencepiece models do.

    Up to Fuse its parts work on single tokens; after it, on the joined text, of which Strip removes at most one space.
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
    """Decode a token; added tokens are plain text, which, as in the library, a character outside the alphabet shows."""
    try:
        return bytes([byte_of_character[character] for character in token])
    except KeyError:
        return token.encode()


def _fallback_byte(token: str) -> int | None:
    """Return the byte of a token such as `<0xE4>`, else None."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


def byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes are themselves, the other 68 the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
