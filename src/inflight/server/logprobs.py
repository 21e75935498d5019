"""Log-probabilities in the three forms that clients read: completions', chat's, and vLLM's of prompts.

Knows shapes. A token's name is its text; where that is no whole character, its bytes, written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inflight.core.plan import TokenLogprob
from inflight.text import Tokenizer

LEAST = -9999.0  # JSON has no infinity; what OpenAI writes for "as good as impossible"


class TokenNames:
    """Names of tokens, each looked up once."""

    def __init__(self, tokenizer: Tokenizer | None):
        self._tokenizer = tokenizer
        self._names: dict[int, tuple[str, list[int] | None]] = {}

    def text(self, token_id: int) -> str:
        return self._named(token_id)[0]

    def bytes(self, token_id: int) -> list[int] | None:
        """None for special tokens, which are no text."""
        return self._named(token_id)[1]

    def _named(self, token_id: int) -> tuple[str, list[int] | None]:
        if token_id not in self._names:
            self._names[token_id] = self._look_up(token_id)
        return self._names[token_id]

    def _look_up(self, token_id: int) -> tuple[str, list[int] | None]:
        if self._tokenizer is None:
            return f"token_id:{token_id}", None
        raw = self._tokenizer.token_bytes(token_id)
        if not raw:
            return self._tokenizer.decode([token_id], skip_special_tokens=False) or f"token_id:{token_id}", None
        try:
            return raw.decode("utf-8"), list(raw)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), list(raw)


def finite(value: float) -> float:
    return max(value, LEAST)


def chat_logprobs(entries: Iterable[TokenLogprob], names: TokenNames) -> dict[str, Any]:
    """`choices[i].logprobs` of chat."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": names.text(token_id), "logprob": finite(logprob), "bytes": names.bytes(token_id)}

    content = [
        {**one(entry.token_id, entry.logprob), "top_logprobs": [one(*pair) for pair in entry.top]} for entry in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """`choices[i].logprobs` of completions, piece by piece: offsets go on where the last piece ended.

    With echo the prompt's tokens come first; the very first token has no log-probability, because nothing is before it.
    """

    def __init__(self, names: TokenNames):
        self._names = names
        self._offset = 0

    def prompt(self, token_ids: Sequence[int], scores: Sequence[TokenLogprob]) -> dict[str, Any]:
        """token_ids: the whole prompt; scores: of all its tokens but the first."""
        return self._piece([(token_ids[0], None), *((entry.token_id, entry) for entry in scores)])

    def output(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        return self._piece([(entry.token_id, entry) for entry in entries])

    def _piece(self, items: list[tuple[int, TokenLogprob | None]]) -> dict[str, Any]:
        piece: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, entry in items:
            name = self._names.text(token_id)
            piece["tokens"].append(name)
            piece["text_offset"].append(self._offset)
            self._offset += len(name)
            piece["token_logprobs"].append(None if entry is None else finite(entry.logprob))
            piece["top_logprobs"].append(None if entry is None else self._top(entry))
        return piece

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The likeliest, and the token itself. Of tokens that look alike the likelier one is shown, as OpenAI does."""
        top: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            top.setdefault(self._names.text(token_id), finite(logprob))
        return top


def joined(pieces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for piece in pieces:
        for name, values in piece.items():
            whole[name] += values
    return whole


def prompt_logprobs(scores: Sequence[TokenLogprob], names: TokenNames) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: nothing for the first token, then token id → what is known of it."""
    shown: list[dict[str, Any] | None] = [None]
    for entry in scores:
        ranks = {token_id: rank for rank, (token_id, _) in enumerate(entry.top, 1)}
        known = {entry.token_id: entry.logprob, **dict(entry.top)}
        shown.append(
            {
                str(token_id): {
                    "logprob": finite(logprob),
                    "rank": ranks.get(token_id),
                    "decoded_token": names.text(token_id),
                }
                for token_id, logprob in known.items()
            }
        )
    return shown
