"""What bodies share: strictness, the fields about sampling, scheduling and streaming, and refusals in words.

A field that is not here is unknown, and a 400 that names it. A field that OpenAI has and this server does not serve is
refused in words, unless it holds what means "not used". Knows names and types; `SamplingParams` knows what values mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inflight.server.errors import invalid

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Refused = Mapping[str, tuple[tuple[Any, ...], str]]  # field → values that mean "not used", and why it is refused


class Body(BaseModel):
    """A JSON object with these fields and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)
    refused: ClassVar[Refused] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = dict(data)
        for name, (unused, why) in cls.refused.items():
            if name in kept:
                value = kept.pop(name)
                if value is not None and not any(
                    value is one or (value == one and type(value) is type(one)) for one in unused
                ):
                    raise invalid(f"The field {name!r} is not served: {why}", name, "unsupported_field")
        return kept


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    refused: ClassVar[Refused] = {"include_obfuscation": ((False,), "frames carry nothing but the answer.")}


class Slo(Body):
    """Targets of one request, in milliseconds."""

    ttft_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    itl_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class GenerationBody(Body):
    """Fields of completions and chat alike."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=300)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    seed: Whole | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    service_tier: Literal["auto", "default", "priority", "flex"] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    slo: Slo | None = None
    cache_salt: str | None = None
    timings: bool | None = None
    output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None

    @property
    def named_user(self) -> str | None:
        """Whom the body says that it is for."""
        return self.user
