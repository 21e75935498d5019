"""What a response repeats of the body that asked for it.

Knows the fields of OpenAI's response object that come from the body; tools and the like pass as the JSON that came.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

_NONE = Raw(b"[]")


class RepeatedText(Struct, frozen=True):
    """Of `text`: how the answer was to look."""

    format: Raw = Raw(b'{"type":"text"}')
    verbosity: str = "medium"


class RepeatedReasoning(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class Repeated(Struct, frozen=True, kw_only=True):
    """store: whether it is stored."""

    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: RepeatedReasoning = RepeatedReasoning()
    safety_identifier: str | None = None
    store: bool = False
    text: RepeatedText = RepeatedText()
    tool_choice: Raw = Raw(b'"auto"')
    tools: Raw = _NONE
    top_logprobs: int = 0
    truncation: str = "disabled"
    user: str | None = None


_DECODER = msgspec.json.Decoder(Repeated)
encode_repeated = msgspec.json.Encoder().encode


def decode_repeated(content: bytes) -> Repeated:
    return _DECODER.decode(content) if content else Repeated()
