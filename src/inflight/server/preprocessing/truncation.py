"""A conversation cut at its beginning, as far as it must be to fit into the model's context.

Knows where it may begin, and finds the longest that fits in few tries; how a prompt is made of it, the caller knows.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from inflight.server.bodies.as_chat import AsChat
from inflight.server.bodies.chat import ChatBody
from inflight.server.errors import ApiError
from inflight.server.preprocessing.wire import PreparedChat

TOKEN_BYTES = 4  # of a prompt's tokens


def fitting(asked: AsChat, most_tokens: int, room: int, prepare: Callable[[ChatBody], PreparedChat]) -> PreparedChat:
    """room: tokens that are left to the answer. Where nothing fits, the shortest is refused. Raises ApiError."""
    messages, may_begin = asked.body.messages, asked.may_begin
    kept = messages[: may_begin[0]]

    def prepared(number: int) -> PreparedChat:
        return prepare(replace(asked.body, messages=kept + messages[may_begin[number] :]))

    def fits(number: int) -> PreparedChat | None:
        try:
            found = prepared(number)
        except ApiError as error:
            if error.code == "context_length_exceeded":
                return None
            raise
        tokens = sum(len(prompt.token_ids) // TOKEN_BYTES for prompt in found.prompts)
        return found if tokens + room <= most_tokens else None

    first = fits(0)
    if first is not None:
        return first
    low, high, best = 1, len(may_begin), None  # what is cut further is shorter
    while low < high:
        middle = (low + high) // 2
        found = fits(middle)
        if found is None:
            low = middle + 1
        else:
            high, best = middle, found
    return best or prepared(len(may_begin) - 1)
