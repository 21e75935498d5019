"""Log-probabilities in the forms that clients read: chat's, and vLLM's of prompts; completions have their own.

A token's name is its text; where that is no whole character, its bytes, written out. Each token's entry is made JSON at
once: as objects, a large answer would take many times the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.logprobs import finite
from inflight.text import Tokenizer

encode = msgspec.json.Encoder().encode  # NaN, should one come so far, is null


class TokenNames:
    """Names of tokens, each looked up once. as_ids: a token is called by its id."""

    def __init__(self, tokenizer: Tokenizer | None, as_ids: bool = False):
        self.tokenizer = tokenizer
        self._as_ids = as_ids
        self._names: dict[int, tuple[str, list[int] | None]] = {}

    def text(self, token_id: int) -> str:
        return self._named(token_id)[0]

    def bytes(self, token_id: int) -> list[int] | None:
        """Return the token's bytes; None for special tokens, which are no text."""
        return self._named(token_id)[1]

    def _named(self, token_id: int) -> tuple[str, list[int] | None]:
        if token_id not in self._names:
            self._names[token_id] = self._look_up(token_id)
        return self._names[token_id]

    def _look_up(self, token_id: int) -> tuple[str, list[int] | None]:
        if self.tokenizer is None or self._as_ids:
            return f"token_id:{token_id}", None
        raw = self.tokenizer.token_bytes(token_id)
        if not raw:
            return self.tokenizer.decode([token_id], skip_special_tokens=False) or f"token_id:{token_id}", None
        try:
            return raw.decode("utf-8"), list(raw)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), list(raw)


def chat_logprobs(entries: Iterable[TokenLogprob], names: TokenNames) -> dict[str, Any]:
    """Return `choices[i].logprobs` of chat."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": names.text(token_id), "logprob": finite(logprob), "bytes": names.bytes(token_id)}

    def shown(entry: TokenLogprob) -> dict[str, Any]:
        return {**one(entry.token_id, entry.logprob), "top_logprobs": [one(*pair) for pair in entry.top]}

    content = [Raw(encode(shown(entry))) for entry in entries]
    return {"content": content, "refusal": None}


def prompt_logprobs(scores: Sequence[TokenLogprob], names: TokenNames) -> list[Raw | None]:
    """Return vLLM's `prompt_logprobs`: null for the first token, then token id → log-probability, rank and text."""

    def shown(entry: TokenLogprob) -> dict[str, Any]:
        ranks = {token_id: rank for rank, (token_id, _) in enumerate(entry.top, 1)}
        known = {entry.token_id: entry.logprob, **dict(entry.top)}
        return {
            str(token_id): {
                "logprob": finite(logprob),
                "rank": ranks.get(token_id),
                "decoded_token": names.text(token_id),
            }
            for token_id, logprob in known.items()
        }

    return [None, *(Raw(encode(shown(entry))) for entry in scores)]
