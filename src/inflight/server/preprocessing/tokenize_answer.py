"""The answer of /tokenize, written part by part, so that tokens of a long text do not lie in memory as objects."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from inflight.server.errors import invalid
from inflight.text import Tokenizer

MAX_TOKENS = 1 << 20  # of one answer

_encode = msgspec.json.Encoder().encode


class TokenizeAnswer:
    def __init__(self, tokenizer: Tokenizer, shows_texts: bool):
        """shows_texts: the answer has each token's text beside its id."""
        self._tokenizer, self._shows_texts = tokenizer, shows_texts
        self._count = 0
        self._tokens, self._texts = bytearray(), bytearray()

    def add(self, tokens: Sequence[int], field: str) -> None:
        """Append tokens. field: that they are from. Raises ApiError where there are too many."""
        if not tokens:
            return
        self._count += len(tokens)
        if self._count > MAX_TOKENS:
            raise invalid(
                f"{field} has more than {MAX_TOKENS:,} tokens, the most of one answer; send it in parts.",
                field,
                "body_too_complex",
            )
        _append(self._tokens, _encode(tokens))
        if self._shows_texts:
            _append(self._texts, _encode([self._tokenizer.id_to_token(one) or "" for one in tokens]))

    def json(self, max_model_len: int) -> bytes:
        """Return the whole answer."""
        answer = {"count": self._count, "max_model_len": max_model_len, "tokens": Raw(b"[%b]" % bytes(self._tokens))}
        if self._shows_texts:
            answer["token_strs"] = Raw(b"[%b]" % bytes(self._texts))
        return _encode(answer)


def _append(entries: bytearray, more: bytes) -> None:
    """more: a list in JSON, with at least one entry."""
    if entries:
        entries += b","
    entries += more[1:-1]
