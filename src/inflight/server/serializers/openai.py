"""What OpenAI's completions and chat share: the envelope of answers and frames, usage, timings.

Knows a call and its usage; what a choice looks like, the endpoint's own file knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from inflight.frontend.outputs import OutputCollector
from inflight.server.call import Call
from inflight.server.errors import ApiError
from inflight.server.logprobs import TokenNames, encode
from inflight.server.serializers.protocol import Change, Choice, Usage

DONE = b"data: [DONE]\n\n"
ALIVE = b": waiting\n\n"  # a comment, which readers pass over


class OpenAISerializer:
    """An `AnswerSerializer` but for its choices. name, frame_name: the `object` of whole answers, and of frames."""

    name: ClassVar[str]
    frame_name: ClassVar[str]
    alive = ALIVE

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        self._call, self._collectors, self._names = call, collectors, names
        self._frame_envelope = self._envelope(self.frame_name)

    # -- what differs -----------------------------------------------------------------------------------------------

    def whole_choice(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def frame_choices(self, change: Change) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """A choice of each frame: of those before any of its tokens, and of the others."""
        raise NotImplementedError

    def extras(self) -> dict[str, Any]:
        """What a whole answer says beside its choices."""
        return {}

    # -- what does not ----------------------------------------------------------------------------------------------

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        answer = self._envelope(self.name)
        # One by one: what encodes lets nobody else run meanwhile.
        answer["choices"] = [msgspec.Raw(encode(self.whole_choice(one))) for one in choices]
        answer["usage"] = self.usage(usage)
        return encode(answer | self.extras() | self._timings() | self._kv_transfer())

    def frames(self, changes: Sequence[Change], before: Usage, after: Usage, ended: bool) -> bytes:
        choices: list[tuple[dict[str, Any], Usage]] = []
        for change in changes:
            first, others = self.frame_choices(change)
            choices += [(one, before) for one in first] + [(one, after) for one in others]
        last = len(choices) - 1 if ended else None
        return b"".join([self._frame(*choice, number == last) for number, choice in enumerate(choices)])

    def end(self, usage: Usage) -> bytes:
        if not self._call.include_usage:
            return DONE
        last = {**self._frame_envelope, "choices": [], "usage": self.usage(usage)}
        last |= self._timings() | self._kv_transfer()
        return frame(last) + DONE

    def failed(self, error: ApiError) -> bytes:
        return frame(error.body) + DONE

    def usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }

    def _frame(self, choice: dict[str, Any], usage: Usage, last: bool) -> bytes:
        call = self._call
        whole: dict[str, Any] = {**self._frame_envelope, "choices": [choice]}
        if call.include_usage or call.continuous_usage:
            whole["usage"] = self.usage(usage) if call.continuous_usage else None
        if last and not call.include_usage:
            whole |= self._timings() | self._kv_transfer()
        return frame(whole)

    def _envelope(self, name: str) -> dict[str, Any]:
        call = self._call
        return {
            "id": call.call_id,
            "object": name,
            "created": call.created,
            "model": call.model,
            "service_tier": call.tier,
        }

    def _kv_transfer(self) -> dict[str, Any]:
        """As routers between prefill and decode servers look for it."""
        return {"kv_transfer_params": msgspec.Raw(self._call.kv_transfer)} if self._call.kv_transfer else {}

    def _timings(self) -> dict[str, Any]:
        """One account for one prompt; a list for several."""
        if not self._call.timings:
            return {}
        timings = [one.timings.to_json() for one in self._collectors if one.timings is not None]
        return {"timings": timings[0] if len(self._collectors) == 1 else timings}


def frame(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(content) + b"\n\n"
