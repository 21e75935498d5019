"""Log-probabilities in the three forms that clients read: completions', chat's, and vLLM's of prompts.

A token's name is its text; where that is no whole character, its bytes, written out. Each token's entry is made JSON at
once: as objects, a large answer would take many times the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from inflight.core.types.request import Request
from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.logprobs import finite
from inflight.text import IncrementalDetokenizer, Tokenizer

_ENCODER = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """Return JSON; NaN, should one come so far, is null."""
    return _ENCODER.encode(value)


class TokenNames:
    """Names of tokens, each looked up once. as_ids: a token is called by its id."""

    def __init__(self, tokenizer: Tokenizer | None, as_ids: bool = False):
        self.tokenizer = tokenizer
        self._as_ids = as_ids
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
    """`choices[i].logprobs` of chat."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": names.text(token_id), "logprob": finite(logprob), "bytes": names.bytes(token_id)}

    def shown(entry: TokenLogprob) -> dict[str, Any]:
        return {**one(entry.token_id, entry.logprob), "top_logprobs": [one(*pair) for pair in entry.top]}

    content = [Raw(encode(shown(entry))) for entry in entries]
    return {"content": content, "refusal": None}


class LogprobPieces:
    """`choices[i].logprobs` of completions, piece by piece: offsets go on where the last piece ended.

    With echo the prompt's tokens come first; the very first token has no log-probability, because nothing is before it.
    A token's offset is the number of whole characters before it in the text that is returned, and of marks for bytes
    before it that are none: all tokens of a character that is spread over several stand where it does, and those that
    are not shown where the next one does.
    """

    def __init__(self, names: TokenNames, request: Request):
        self._names = names
        self._request = request
        self._offset = 0
        self._output: IncrementalDetokenizer | None = None

    def prompt(self, text: str, scores: Sequence[TokenLogprob]) -> dict[str, Any]:
        """text: the prompt as it is echoed; scores: of all its tokens but the first."""
        tokenizer = self._names.tokenizer
        detokenizer = None if tokenizer is None else IncrementalDetokenizer(tokenizer, skip_special_tokens=False)

        def added(token_id: int) -> tuple[int, int]:
            if tokenizer is None or detokenizer is None:
                return 0, 0
            # A special token that the tokenizer has put around the text is not in it; one that was written there is.
            hidden = token_id in tokenizer.special_token_ids
            if hidden and not text.startswith(self._names.text(token_id), self._offset):
                return 0, 0
            return detokenizer.marks_before(token_id), len(detokenizer.push(token_id))

        first = self._request.prompt_token_ids[0]
        piece = self._piece([(first, None), *((entry.token_id, entry) for entry in scores)], added)
        self._offset = len(text)  # where the output begins, also after half a character
        return piece

    def output(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        tokenizer, request = self._names.tokenizer, self._request
        if self._output is None and tokenizer is not None:
            skips = request.params.skip_special_tokens
            self._output = IncrementalDetokenizer(tokenizer, request.prompt_token_ids, skips)
        detokenizer = self._output

        def added(token_id: int) -> tuple[int, int]:
            if detokenizer is None:
                return 0, 0
            return detokenizer.marks_before(token_id), len(detokenizer.push(token_id))

        return self._piece([(entry.token_id, entry) for entry in entries], added)

    def _piece(
        self, items: list[tuple[int, TokenLogprob | None]], added: Callable[[int], tuple[int, int]]
    ) -> dict[str, Any]:
        """Return a piece. added: characters of the text that a token completes, and how many stand before it."""
        piece: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, entry in items:
            piece["tokens"].append(self._names.text(token_id))
            behind, characters = added(token_id)
            piece["text_offset"].append(self._offset + behind)
            self._offset += characters
            piece["token_logprobs"].append(None if entry is None else finite(entry.logprob))
            piece["top_logprobs"].append(None if entry is None else self._top(entry))
        return piece

    def _top(self, entry: TokenLogprob) -> Raw:
        """Return the likeliest, and the token itself. Of tokens that look alike the likelier is shown."""
        top: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            top.setdefault(self._names.text(token_id), finite(logprob))
        return Raw(encode(top))


def joined_logprobs(pieces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for piece in pieces:
        for name, values in piece.items():
            whole[name] += values
    return whole


def prompt_logprobs(scores: Sequence[TokenLogprob], names: TokenNames) -> list[Raw | None]:
    """vLLM's `prompt_logprobs`: nothing for the first token, then token id → what is known of it."""

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
