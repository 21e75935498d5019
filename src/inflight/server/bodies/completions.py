"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from inflight.server.bodies.common import COMMON_HINTS, COMMON_NEUTRAL, GenerationSettings
from inflight.server.bodies.decoding import BodyDecoder
from inflight.server.bodies.types import MAX_TOKEN_IDS, Count, Samples, Text, TokenId, TokenIds, TopLogprobs

# A list holds texts only, token ids only, or lists of token ids only; which, is looked at when it is cut.
Prompt = Text | Annotated[list[TokenId | Text | TokenIds], Meta(max_length=MAX_TOKEN_IDS)]
DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionSettings(GenerationSettings, kw_only=True, forbid_unknown_fields=True):
    """logprobs: alternatives beside the token's own. max_tokens: 16 where left out; null: what there is room for."""

    max_tokens: Count | UnsetType | None = UNSET
    best_of: Samples | None = None
    echo: bool | None = None
    logprobs: TopLogprobs | None = None


class CompletionBody(CompletionSettings, kw_only=True, forbid_unknown_fields=True):
    """prompt: text, texts, token ids, or several lists of token ids."""

    prompt: Prompt


COMPLETION = BodyDecoder(
    CompletionBody,
    neutral={
        **COMMON_NEUTRAL,
        "suffix": (("",), "this model continues text, it does not fill gaps; leave it out."),
    },
    hints=COMMON_HINTS,
)
