"""/v1/fim/completions, as Mistral has it: fill the gap between a prompt and a suffix, answered in chat's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from inflight.core.types.timings import Timings
from inflight.server.common.answers import Change, Choice, OpenAISerializer, Usage
from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.endpoint import Endpoint
from inflight.server.common.fields import COMMON_HINTS, COMMON_NEUTRAL, Count, GenerationSettings, Text
from inflight.server.common.prepared import PreparedCompletion
from inflight.server.openai.completions import CompletionBody
from inflight.server.openai.completions import prepare as prepare_completion

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor


class FimBody(GenerationSettings, kw_only=True, forbid_unknown_fields=True):
    """prompt, suffix: texts around the gap; without a suffix the prompt is continued. max_tokens: null: what there is
    room for."""

    prompt: Text
    suffix: Text | None = None
    max_tokens: Count | None = None


class FimMessage(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str


class FimChoice(Struct, kw_only=True):
    index: int
    message: FimMessage
    finish_reason: str | None


class FimPart(Struct, kw_only=True):
    index: int
    delta: FimMessage
    finish_reason: str | None


class FimCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: str
    choices: list[FimChoice]
    usage: Usage
    timings: Timings | list[Timings] | UnsetType = UNSET


class FimSerializer(OpenAISerializer):
    answer = FimCompletion
    name, frame_name = "chat.completion", "chat.completion.chunk"

    def whole_choice(self, choice: Choice) -> FimChoice:
        output = choice.output
        return FimChoice(
            index=choice.index, message=FimMessage(content=output.text), finish_reason=output.finish_reason
        )

    def frame_choices(self, change: Change) -> tuple[list[FimPart], list[FimPart]]:
        reason = None if change.finish is None else change.finish.reason
        if not change.text and reason is None:
            return [], []
        return [], [FimPart(index=change.index, delta=FimMessage(content=change.text), finish_reason=reason)]


def prepare(preprocessor: Preprocessor, body: FimBody, history: bytes | memoryview) -> PreparedCompletion:
    """Return the prompt and settings. Raises ApiError."""
    settings = {name: getattr(body, name) for name in FimBody.__struct_fields__}
    return replace(prepare_completion(preprocessor, CompletionBody(**settings), history), kind="fim")


FIM_ENDPOINT = Endpoint(
    name="fim",
    path="/v1/fim/completions",
    body=BodyDecoder(FimBody, neutral=COMMON_NEUTRAL, hints=COMMON_HINTS),
    prepare=prepare,
    result=FimCompletion,
    serializer=FimSerializer,
    prompt_field="prompt",
    call_prefix="fim-",
    operation="fim_completions",
    about="Fill the gap between a prompt and a suffix. Mistral's endpoint.",
)
