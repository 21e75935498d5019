"""A request in two parts: its prompt for one engine, which gives the keys and values of it, and itself for another,
which takes them and answers; and when the other is asked.

As the engine's own servers do it (docs/disaggregation.md): both compute the first token, and the client sees the
answer's. Whole blocks before the prompt's last token are handed over. Knows requests; nothing of engines and links.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from inflight.core.types.peers import KVHandover, PeerPlace
from inflight.core.types.request import Request

Asks = Literal["after", "first"]
FirstToken = Literal["decode", "prefill"]

_PROMPT = "prompt of "
_SOMEWHERE = ("prefill", 1)  # an address, which nobody calls


@dataclass(frozen=True, slots=True)
class Handover:
    """asks: when the decode engine is asked: after the prompt is computed, as behind a router, or first, so that blocks
    travel while it is. first_token: whose the client sees: the decode engine's, as with this engine's servers, or that
    of the prefill engine, as DistServe's (arXiv 2401.09670) and Splitwise's (arXiv 2311.18677)."""

    asks: Asks = "after"
    first_token: FirstToken = "decode"

    def ends_with_prompt(self, request: Request) -> bool:
        """Whether the prefill engine's token is the whole answer."""
        length, most = request.forced_output_tokens, request.params.max_tokens
        return self.first_token == "prefill" and (length == 1 or most == 1)


AFTER = Handover()


def for_prefill(request: Request) -> Request:
    """The prompt and one token, whose blocks are held for whoever asks for them."""
    return replace(
        request,
        request_id=_PROMPT + request.request_id,
        params=replace(request.params, max_tokens=1, min_tokens=0),
        forced_output_tokens=1,
        handover=KVHandover(give=request.request_id),
    )


def for_decode(request: Request) -> Request:
    """All of it, with the place where its prompt is."""
    return replace(request, handover=KVHandover(take=PeerPlace(*_SOMEWHERE, request.request_id)))
