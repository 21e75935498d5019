"""/apply-template, as llama-server has it: the prompt that the chat template makes of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from inflight.server.common.conversation import ChatBody
from inflight.server.common.endpoint import Endpoint
from inflight.server.common.prepared import PreparedAnswer
from inflight.server.openai.chat import CHAT

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor


class AppliedTemplate(Struct, kw_only=True):
    prompt: str


def prepare(preprocessor: Preprocessor, body: ChatBody, history: bytes | memoryview) -> PreparedAnswer:
    """Return the prompt as text. Raises ApiError."""
    preprocessor.check_generates(body.model)
    rendered = preprocessor.prompts.rendered(body, preprocessor.forms.tools(body).shown)
    return PreparedAnswer(msgspec.json.encode(AppliedTemplate(prompt=rendered.text)))


APPLY_TEMPLATE_ENDPOINT = Endpoint(
    name="apply_template",
    path="/apply-template",
    body=CHAT,
    prepare=prepare,
    result=AppliedTemplate,
    operation="apply_template",
    about="The prompt that the chat template makes of messages and tools, as text. llama-server's endpoint.",
)
