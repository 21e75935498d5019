"""What a body says of the form of its answer: OpenAI's `response_format`, and vLLM's `structured_outputs`.

Knows shapes; what may stand in a schema or a grammar, `preprocessing.structured` and the engine know.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from inflight.server.bodies.types import JsonObject, Name, Text

MOST_CHOICES = 4096

Schema = JsonObject | Text  # vLLM takes a schema as JSON text, too
Choices = Annotated[list[Annotated[str, Meta(max_length=1 << 16)]], Meta(min_length=1, max_length=MOST_CHOICES)]


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """A JSON object of any form."""


class JsonSchemaInside(Struct, kw_only=True, forbid_unknown_fields=True):
    """strict: kept in either way; a schema that cannot be kept is refused."""

    name: Name | None = None
    description: Text | None = None
    schema_: JsonObject | UnsetType = field(default=UNSET, name="schema")
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    json_schema: JsonSchemaInside


class StructuralTagFormat(Struct, tag_field="type", tag="structural_tag", forbid_unknown_fields=True):
    """In vLLM's form: `structures` and `triggers`, or a `format`."""

    structures: Annotated[list[JsonObject], Meta(max_length=1024)] | None = None
    triggers: Annotated[list[Annotated[str, Meta(max_length=512)]], Meta(max_length=1024)] | None = None
    format: JsonObject | None = None


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's; one of the first six. A choice of implementation is none here, so that others pass as "not used"."""

    json: Schema | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    structural_tag: Text | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: Text | None = None


FIELDS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
