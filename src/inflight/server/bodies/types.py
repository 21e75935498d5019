"""Types of body fields: what a value may be, and how long. The OpenAPI document shows these bounds.

Knows msgspec's constraints and nothing of what a field means. Every list and every text has a bound, so that what a
body costs to check is bounded by its bytes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from inflight.core.types.sampling import MAX_TEMPERATURE, MIN_REPETITION_PENALTY
from inflight.counted import MAX_MILLISECONDS

LONGEST_TEXT = 1 << 24  # characters of a prompt or message; the limit of bodies is usually lower
MAX_TOKEN_IDS = 1 << 20  # of one prompt
MAX_MESSAGES = 4096
MAX_STOPS = 32
LONGEST_STOP = 512

Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Name = Annotated[str, Meta(max_length=512)]
Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Count = Annotated[int, Meta(ge=0, lt=2**31)]
Positive = Annotated[int, Meta(ge=1, lt=2**31)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_IDS)]
Samples = Annotated[int, Meta(ge=1, le=1024)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Temperature = Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)]
RepetitionPenalty = Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=100)]
Milliseconds = Annotated[float, Meta(gt=0, le=MAX_MILLISECONDS)]
StopString = Annotated[str, Meta(max_length=LONGEST_STOP)]
Stops = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)]
Words = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=256)]
FewTokenIds = Annotated[list[TokenId], Meta(max_length=1024)]
LogitBias = Annotated[
    dict[Annotated[str, Meta(max_length=20)], Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=300)
]
TemplateVariables = Annotated[dict[Annotated[str, Meta(max_length=256)], Any], Meta(max_length=64)]
JsonObject = dict[str, Any]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
