"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from inflight.server.bodies.common import GenerationBody, Refused

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class CompletionBody(GenerationBody):
    """prompt: text, texts, token ids, or several lists of token ids. logprobs: alternatives beside the token's own."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = 16
    best_of: Annotated[int, Field(ge=1, le=1024)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    refused: ClassVar[Refused] = {"suffix": (("",), "this model continues text, it does not fill gaps; leave it out.")}
