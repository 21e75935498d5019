"""Bound the characters of one token, to refuse a text that is too long before it is tokenized.

If a component may drop characters (a normalizer that strips accents, a pre-tokenizer that removes spaces, unknown
characters that become one token), there is no bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inflight.text.compiled_tokenizer import CompiledTokenizer
from inflight.text.pieces import byte_level_alphabet, parts_of

if TYPE_CHECKING:
    import tokenizers

    Backend = tokenizers.Tokenizer | CompiledTokenizer

# NFC and NFKC put characters together; what they make of several is never of more than four, since the longest
# canonical decomposition of a character (such as U+1F82) has four.
COMPOSED = 4
_COMPOSING = ("NFC", "NFKC")
_KEEPING = ("NFD", "NFKD", "Prepend", "ByteLevel", "Metaspace", "Digits")


def longest_token(backend: Backend) -> int | None:
    """Return the highest number of a text's characters that one token stands for; None: no bound."""
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
