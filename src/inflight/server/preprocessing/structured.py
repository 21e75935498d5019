"""The form that a body asks of its answer: one grammar, or the sentence that says what is wrong with what was asked.

Knows the fields and how large and deep a schema may be, so that what is handed on is bounded. What a schema or grammar
means, and whether it can be kept, the engine knows.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UnsetType

from inflight.core.types.sampling import MAX_SOURCE_CHARS, Grammar
from inflight.counted import shortened
from inflight.server.bodies.common import GenerationSettings
from inflight.server.bodies.structured import (
    FIELDS,
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    StructuralTagFormat,
    StructuredOutputs,
)
from inflight.server.errors import invalid

DEEPEST_SCHEMA = 64  # values within one another
LONGEST_REGEX = 1 << 14
_NO_FORM = (None, False)
_OPTIONS = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def grammar_of(body: GenerationSettings) -> Grammar | None:
    """None where any text will do. Raises ApiError."""
    found: dict[str, Grammar] = {}
    for name in FIELDS:
        value = getattr(body, name)
        if value is not None and (grammar := _READ[name](value)) is not None:
            found[name] = grammar
    if len(found) > 1:
        first, second, *_ = found
        raise invalid(f"{first} and {second} both say what the answer must be like; give one.", second)
    return next(iter(found.values()), None)


def schema_text(schema: dict[str, Any] | str, place: str) -> str:
    """A JSON schema as text, once it is bounded. Raises ApiError."""
    if isinstance(schema, str):
        _check_length(schema, place)
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise invalid(f"{place} is not a schema in JSON: {shortened(str(error))}.", place) from None
    _check_schema(schema, place)
    text = msgspec.json.encode(schema).decode()
    _check_length(text, place)
    return text


def _check_schema(schema: Any, place: str) -> None:
    """Bound the depth, and refuse references to other documents, since nothing is fetched. Whether a reference by `$id`
    names a part of this one is known where schemas are compiled."""
    left: list[tuple[Any, str, int]] = [(schema, place, 1)]
    has_addresses = False
    remote: tuple[str, str] | None = None
    while left:
        value, where, depth = left.pop()
        if depth > DEEPEST_SCHEMA:
            raise invalid(
                f"{place} is nested {depth} deep at {shortened(where)}, and a schema may be {DEEPEST_SCHEMA}; make it "
                "flatter.",
                place,
            )
        if isinstance(value, list):
            left += [(one, f"{where}[{number}]", depth + 1) for number, one in enumerate(value)]
        elif isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                remote = remote or (reference, where)
            has_addresses |= any(isinstance(value.get(name), str) for name in ("$id", "id"))
            left += [(one, f"{where}.{name}", depth + 1) for name, one in value.items()]
    if remote is not None and not has_addresses:
        reference, where = remote
        raise invalid(
            f"{place} refers to {shortened(reference)!r} ($ref at {shortened(where)}), and schemas are not fetched; "
            "put it into $defs and refer to it as #/$defs/….",
            place,
        )


def _check_length(source: str, place: str, most: int = MAX_SOURCE_CHARS) -> None:
    if len(source) > most:
        raise invalid(f"{place} has {len(source):,} characters, and at most {most:,} are read; shorten it.", place)


def _response_format(asked: ResponseFormat) -> Grammar | None:
    if isinstance(asked, JsonObjectFormat):
        return Grammar("json_object")
    if isinstance(asked, JsonSchemaFormat):
        schema = asked.json_schema.schema_
        if isinstance(schema, UnsetType):
            raise invalid("response_format.json_schema has no schema; give one.", "response_format", "missing_field")
        return Grammar("json_schema", schema_text(schema, "response_format.json_schema.schema"))
    if isinstance(asked, StructuralTagFormat):
        return _structural_tag(msgspec.json.encode(asked).decode(), "response_format")
    return None


def _structured_outputs(asked: StructuredOutputs) -> Grammar | None:
    for option in _OPTIONS[1:]:
        if getattr(asked, option):
            raise invalid(
                f"The field 'structured_outputs.{option}' is not served: what JSON looks like is not to be chosen.",
                f"structured_outputs.{option}",
                "unsupported_field",
            )
    forms = [name for name in asked.__struct_fields__ if name not in _OPTIONS and getattr(asked, name) not in _NO_FORM]
    if len(forms) != 1:
        raise invalid(
            f"structured_outputs has {' and '.join(forms) or 'no form'}; give exactly one of json, regex, choice, "
            "grammar, json_object and structural_tag.",
            "structured_outputs",
        )
    name = forms[0]
    value, place = getattr(asked, name), f"structured_outputs.{name}"
    if name == "json":
        return Grammar("json_schema", schema_text(value, place))
    if name == "regex":
        return _regex(value, place)
    if name == "choice":
        return _choice(value, place)
    if name == "grammar":
        return _lark(value, place)
    return Grammar("json_object") if name == "json_object" else _structural_tag(value, place)


def _structural_tag(source: str, place: str) -> Grammar:
    try:
        tag = msgspec.json.decode(source, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(f"{place} is not a structural tag in JSON: {shortened(str(error))}.", place) from None
    _check_schema(tag, place)
    _check_length(source, place)
    return Grammar("structural_tag", source)


def _regex(value: str, place: str) -> Grammar:
    _check_length(value, place, LONGEST_REGEX)
    return Grammar("regex", value)


def _choice(value: list[str], place: str) -> Grammar:
    if "" in value:
        raise invalid(f"{place} holds an empty text at {value.index('')}; leave it out.", place)
    source = msgspec.json.encode(value).decode()
    _check_length(source, place)
    return Grammar("choice", source)


def _lark(value: str, place: str) -> Grammar:
    _check_length(value, place)
    return Grammar("lark", value)


_READ: dict[str, Any] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": lambda value: Grammar("json_schema", schema_text(value, "guided_json")),
    "guided_regex": lambda value: _regex(value, "guided_regex"),
    "guided_choice": lambda value: _choice(value, "guided_choice"),
    "guided_grammar": lambda value: _lark(value, "guided_grammar"),
}
