"""Every field that today's clients can send is honoured, refused by its name, or passed over as the pages say.

The lists are the clients' own types; what the server does with a field is asked of the decoders of bodies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inflight.server.anthropic.messages import schema as messages
from inflight.server.common import conversation as chat
from inflight.server.common import fields as common
from inflight.server.common import tools
from inflight.server.common.prepared import EndpointName
from inflight.server.errors import ApiError
from inflight.server.openai.responses import schema as responses
from inflight.server.registry import ENDPOINTS

from .environments import HERE, Environment

pytestmark = pytest.mark.foreign
DOCS = HERE.parents[1] / "docs"
PAGES = {name: DOCS / f"{name}.md" for name in ("serving-reference", "responses-api", "messages-api")}
HI = [{"role": "user", "content": "Hi"}]
ODD = {"odd": ["value"]}  # which no field takes for "not used"

OPENAI, ANTHROPIC, BETA = "openai.types", "anthropic.types", "anthropic.types.beta"
CHAT = f"{OPENAI}.chat.completion_create_params:CompletionCreateParams"
COMPLETION = f"{OPENAI}.completion_create_params:CompletionCreateParams"
RESPONSE = f"{OPENAI}.responses.response_create_params:ResponseCreateParams"
MESSAGE = "message_create_params:MessageCreateParams"
COUNT = "message_count_tokens_params:MessageCountTokensParams"

Case = tuple[str, str, EndpointName, dict[str, Any], str]  # client, type, endpoint, a body, page
BODIES: list[Case] = [
    ("openai_python", f"{CHAT}Streaming", "chat", {"messages": HI}, "serving-reference"),
    ("openai_python", f"{CHAT}NonStreaming", "chat", {"messages": HI}, "serving-reference"),
    ("openai_python", f"{COMPLETION}Streaming", "completion", {"prompt": "Hi"}, "serving-reference"),
    ("openai_python", f"{RESPONSE}Streaming", "responses", {"input": "Hi"}, "responses-api"),
    ("openai_python", f"{RESPONSE}NonStreaming", "responses", {"input": "Hi"}, "responses-api"),
]
for _module in (ANTHROPIC, BETA):
    _message = {"messages": HI, "max_tokens": 9}
    BODIES.append(("anthropic", f"{_module}.{MESSAGE}Streaming", "messages", _message, "messages-api"))
    BODIES.append(("anthropic", f"{_module}.{MESSAGE}NonStreaming", "messages", _message, "messages-api"))
    BODIES.append(("anthropic", f"{_module}.{COUNT}", "count_tokens", {"messages": HI}, "messages-api"))

# What stands within a body: the client's type, and ours. What ours has not is refused by name, or on the page.
Inner = tuple[str, str, type[msgspec.Struct], str]
WITHIN: list[Inner] = [
    ("openai_python", f"{OPENAI}.shared_params:FunctionDefinition", tools.FunctionSpec, "serving-reference"),
    ("openai_python", f"{OPENAI}.chat:ChatCompletionFunctionToolParam", tools.ToolSpec, "serving-reference"),
    ("openai_python", f"{OPENAI}.chat:ChatCompletionStreamOptionsParam", common.StreamOptions, "serving-reference"),
    ("openai_python", f"{OPENAI}.chat:ChatCompletionContentPartTextParam", chat.TextPart, "serving-reference"),
    ("openai_python", f"{OPENAI}.chat:ChatCompletionAssistantMessageParam", chat.Message, "serving-reference"),
    ("openai_python", f"{OPENAI}.chat:ChatCompletionToolMessageParam", chat.Message, "serving-reference"),
    ("openai_python", f"{OPENAI}.chat:ChatCompletionUserMessageParam", chat.Message, "serving-reference"),
    (
        "openai_python",
        f"{OPENAI}.shared_params.response_format_json_schema:JSONSchema",
        common.JsonSchemaInside,
        "",
    ),
    ("openai_python", f"{OPENAI}.responses:FunctionToolParam", responses.FunctionTool, "responses-api"),
    ("openai_python", f"{OPENAI}.shared_params:Reasoning", responses.ReasoningField, "responses-api"),
    ("openai_python", f"{OPENAI}.responses:ResponseTextConfigParam", responses.TextField, "responses-api"),
    *(
        ("openai_python", f"{OPENAI}.responses{name}", kind, "responses-api")
        for name, kind in (
            (":EasyInputMessageParam", responses.MessageItem),
            (":ResponseOutputMessageParam", responses.MessageItem),
            (".response_input_param:Message", responses.MessageItem),
            (":ResponseFunctionToolCallParam", responses.FunctionCallItem),
            (".response_input_param:FunctionCallOutput", responses.FunctionCallOutputItem),
            (":ResponseReasoningItemParam", responses.ReasoningItem),
            (":ResponseInputTextParam", responses.Part),
            (":ResponseOutputTextParam", responses.Part),
        )
    ),
    (
        "openai_python",
        f"{OPENAI}.responses:ResponseFormatTextJSONSchemaConfigParam",
        responses.SchemaFormat,
        "responses-api",
    ),
    *(
        ("anthropic", f"{module}:{prefix}{name}", kind, "messages-api")
        for module, prefix in ((ANTHROPIC, ""), (BETA, "Beta"))
        for name, kind in (
            ("ToolParam", messages.ClientTool),
            ("TextBlockParam", messages.TextBlock),
            ("ThinkingBlockParam", messages.ThinkingBlock),
            ("ToolUseBlockParam", messages.ToolUseBlock),
            ("ToolResultBlockParam", messages.ToolResultBlock),
            ("OutputConfigParam", messages.OutputConfig),
            ("MetadataParam", messages.Metadata),
            ("ThinkingConfigEnabledParam", messages.EnabledThinking),
            ("ThinkingConfigAdaptiveParam", messages.AdaptiveThinking),
            ("ToolChoiceToolParam", messages.NamedChoice),
        )
    ),
]


@cache
def fields_of(client: str) -> dict[str, list[str]]:
    """Return all types of a client that are named above."""
    cases: Sequence[Any] = [*BODIES, *WITHIN]
    names = sorted({case[1] for case in cases if case[0] == client})
    said = Environment(client).make().run("python", str(Path(__file__).with_name("field_lists.py")), *names)
    fields: dict[str, list[str]] = json.loads(said)
    return fields


@cache
def named_on(page: str) -> frozenset[str]:
    """Fields between backticks, alone or at the end of a path."""
    quoted = re.findall(r"`([^`\n]+)`", PAGES[page].read_text(encoding="utf-8"))
    return frozenset(word for one in quoted for word in re.findall(r"[a-z_]+", one))


@pytest.mark.parametrize(("client", "kind", "endpoint", "body", "page"), BODIES, ids=[case[1] for case in BODIES])
def test_no_field_is_unknown_and_the_page_names_all(
    client: str, kind: str, endpoint: EndpointName, body: dict[str, Any], page: str
) -> None:
    fields = fields_of(client)[kind]
    assert len(fields) > 9
    for field in fields:
        try:
            ENDPOINTS[endpoint].body.decode(json.dumps({**body, field: ODD}).encode())
        except ApiError as error:
            assert (error.param or "").startswith(field) and field in error.message
            assert (error.code, error.param) != ("unknown_field", field)
    assert not {*fields} - named_on(page)


@pytest.mark.parametrize(("client", "kind", "ours", "page"), WITHIN, ids=[case[1] for case in WITHIN])
def test_what_stands_within_is_known_refused_or_on_the_page(
    client: str, kind: str, ours: type[msgspec.Struct], page: str
) -> None:
    fields = {*fields_of(client)[kind]} - {ours.__struct_config__.tag_field, "type"}
    passed_over = fields - {*ours.__struct_encode_fields__}
    assert fields and (ours.__struct_config__.forbid_unknown_fields or not passed_over - named_on(page))
