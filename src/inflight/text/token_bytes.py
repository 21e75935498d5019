"""Compute the bytes that each token adds to the text, and how many characters a token can stand for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from inflight.text.compiled_tokenizer import CompiledTokenizer
from inflight.text.errors import LibraryFaults, TokenizerError

if TYPE_CHECKING:
    import tokenizers

    Backend = tokenizers.Tokenizer | CompiledTokenizer

_UNDECODABLE = "\ufffd"
# NFC and NFKC put characters together; what they make of several is never of more than four, since the longest
# canonical decomposition of a character (such as U+1F82) has four.
COMPOSED = 4
_COMPOSING = ("NFC", "NFKC")
_KEEPING = ("NFD", "NFKD", "Prepend", "ByteLevel", "Metaspace", "Digits")


class TokenPieces:
    """The bytes of every token of one tokenizer, computed at first use and cached; safe to share between streams.

    In byte-level BPE each character of a token is one byte; in byte fallback `<0xE4>` is one byte; in all other cases
    the library decodes the token after the one before. Only bytes say exactly whether a character that is spread over
    tokens can still be completed: in text, half a character and a U+FFFD that the model wrote look the same.
    """

    def __init__(self, backend: Backend) -> None:
        parts = parts_of(backend.decoder, "decoders")
        kinds = [part["type"] for part in parts]
        self._backend = backend
        self._byte_of_character = byte_level_alphabet() if kinds == ["ByteLevel"] else None
        self._has_byte_fallback = "ByteFallback" in kinds
        # An unknown decoder may look at the token before, so what it adds is asked for each pair again.
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


def max_token_characters(backend: Backend) -> int | None:
    """Return the highest number of a text's characters that one token stands for.

    None: no bound, since a component may drop characters (a normalizer that strips accents, a pre-tokenizer that
    removes spaces, unknown characters that become one token).
    """
    normalizers = parts_of(backend.normalizer, "normalizers")
    parts = [*normalizers, *parts_of(backend.pre_tokenizer, "pretokenizers")]
    if not all(_keeps(part) for part in parts):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None  # these take all the spaces beside them
    if not _has_every_byte(backend, parts):
        return None
    composes = any(part["type"] in _COMPOSING for part in normalizers)
    # Where each character of the name is a byte of the text, it has no fewer of them than the text has characters.
    return _longest_name(backend) * (COMPOSED if composes else 1)


def _longest_name(backend: Backend) -> int:
    if isinstance(backend, CompiledTokenizer):
        return backend.longest_name
    return max(map(len, backend.get_vocab(with_added_tokens=True)))


def _keeps(part: dict[str, Any]) -> bool:
    """Return whether a component keeps every character, composed or not."""
    if part["type"] == "Split":
        return str(part["behavior"]) != "Removed"
    if part["type"] == "Replace":
        found = part["pattern"].get("String")  # what a regular expression finds may be of any length
        return found is not None and len(part["content"]) >= len(found)
    return part["type"] in _KEEPING or part["type"] in _COMPOSING


def _has_every_byte(backend: Backend, parts: list[dict[str, Any]]) -> bool:
    """Return whether no character is unknown: runs of unknown ones may become one token, or none."""
    from tokenizers import models

    if not isinstance(backend, CompiledTokenizer) and not isinstance(backend.model, models.BPE):
        return False
    if any(part["type"] == "ByteLevel" for part in parts):
        return all(backend.token_to_id(character) is not None for character in byte_level_alphabet())
    falls_back = isinstance(backend, CompiledTokenizer) or backend.model.byte_fallback
    return falls_back and all(backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
