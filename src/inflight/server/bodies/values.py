"""Read one value of a body by its field's type, or say in a sentence what the first mistake is and where.

Reads JSON with msgspec, which stops at the first mistake and builds nothing that is not wanted. Which fields a body
has, `decoding` knows.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec
from msgspec import DecodeError, Raw, ValidationError

from inflight.counted import LONGEST_SHOWN, shortened
from inflight.server.bodies.unknown_fields import UnknownFields, without_field
from inflight.server.errors import ApiError, invalid

V = TypeVar("V")

_LONGEST_LOOKED_AT = 1 << 20  # bytes of a body in which half a character is looked for by name
_PATH = re.compile(r" - at `\$?([^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MAX_NESTED_NAMES = 32  # of unknown fields within one field, which is read anew for each
HALF_CHARACTER = re.compile(  # of a surrogate pair, without the other half
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def read_value(name: str, decoder: msgspec.json.Decoder[V], raw: Raw, unknown: UnknownFields | None = None) -> V:
    """Return the value of a field, or of something in it that is read by itself.

    Args:
        name: its place in the body.
        unknown: takes the places of nested fields that are unknown and not null; None: they are refused.

    Raises:
        ApiError: 400, of the first mistake.
    """
    for _ in range(_MAX_NESTED_NAMES):
        try:
            return decoder.decode(raw)
        except ValidationError as error:
            raw = _without_unknown(name, raw, error, unknown or UnknownFields(refuses=True))
        except _UNREADABLE as error:
            raise _not_json(error, bytes(memoryview(raw)), name) from None
    raise invalid(
        f"{shortened(name)} holds more than {_MAX_NESTED_NAMES} unknown fields; leave them out.", name, "unknown_field"
    )


def read_text(name: str, type_: Any, text: str | list[str]) -> Any:
    """Return the value that a parameter's text stands for: "20" is a number, "true" is a truth.

    Args:
        text: several texts, where the parameter may be given several times.

    Raises:
        ApiError: 400.
    """
    try:
        return msgspec.convert(text, type_, strict=False)
    except ValidationError as error:
        given = text if isinstance(text, str) else ", ".join(text)
        raise _mistake(name, repr(given).encode(), _parted(error)[0], []) from None


def _without_unknown(name: str, raw: Raw, error: ValidationError, unknown: UnknownFields) -> Raw:
    """Return the value without the unknown field that the mistake is about. Raises ApiError for any other mistake."""
    message, steps = _parted(error)
    found = _UNKNOWN.fullmatch(message)
    if found is None:
        raise _mistake(name, bytes(memoryview(raw)[: LONGEST_SHOWN + 1]), message, steps)
    try:
        cleaned, was_null = without_field(raw, ["*" if one.startswith("[") else one for one in steps], found[1])
    except _UNREADABLE as fault:
        raise _not_json(fault, bytes(memoryview(raw)), name) from None
    if not was_null:
        unknown.add(f"{name}{_path(steps)}.{found[1]}")
    return cleaned


def fields_of(body: bytes | memoryview) -> dict[str, Raw]:
    """The fields of a JSON object, unread. Raises ApiError 400."""
    try:
        return _FIELDS.decode(body)
    except ValidationError:
        raise invalid("The body is not a JSON object; send one, with Content-Type: application/json.") from None
    except _UNREADABLE as error:
        raise _not_json(error, bytes(body)) from None


def _not_json(error: Exception, body: bytes, field: str | None = None) -> ApiError:
    if isinstance(error, RecursionError):
        return invalid("The body is nested too deeply; send less nested JSON.", field, "invalid_json")
    if HALF_CHARACTER.search(body) and (half := _half_character(body, field)) is not None:
        return half
    if isinstance(error, UnicodeDecodeError):
        return invalid("The body is not UTF-8; send JSON in UTF-8.", field, "invalid_json")
    return invalid(f"The body is not JSON: {without_prefix(error)}.", field, "invalid_json")


def without_prefix(error: Exception) -> str:
    """msgspec's word on where the JSON ends to be any."""
    return str(error).removeprefix("JSON is malformed: ")


def _half_character(body: bytes, field: str | None) -> ApiError | None:
    """Half a surrogate pair, which no token stands for, by the field that holds it. The standard library's reader lets
    it through, and so finds it."""
    if len(body) > _LONGEST_LOOKED_AT:
        return invalid("The body holds half a character (a lone surrogate); send whole characters.", field)
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if field is not None:
        return _half_value(field)
    for name, value in read.items() if isinstance(read, dict) else ():
        if _is_half(name):
            return invalid(
                f"The name of the field {shortened(name)!r} holds half a character (a lone surrogate); leave it out.",
                shortened(name),
                "unknown_field",
            )
        if _is_half(json.dumps(value, ensure_ascii=False)):
            return _half_value(name)
    return None


def _half_value(field: str) -> ApiError:
    sentence = f"{shortened(field)} holds half a character (a lone surrogate); send whole characters."
    return invalid(sentence, shortened(field), "invalid_value")


def _is_half(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _parted(error: ValidationError) -> tuple[str, list[str]]:
    """Return what msgspec says, and the steps to where: names of fields, and `[3]` for an entry."""
    message, inside = str(error), ""
    if found := _PATH.search(message):
        message, inside = message[: found.start()], found[1]
    return message, [name or f"[{number}]" for name, number in _STEP.findall(inside)]


def _path(steps: list[str]) -> str:
    """Return the place that the steps lead to, without entries of objects, which msgspec does not name."""
    steps = [one for one in steps if one != "[...]"]
    return "".join(one if one.startswith("[") else f".{one}" for one in steps)


def _mistake(field: str, begin: bytes, message: str, steps: list[str]) -> ApiError:
    """begin: of the field's value, a little more than is shown."""
    place = shortened(field + _path(steps))
    if steps[-1:] == ["type"] and "content" in steps:
        return invalid(
            f'{place}: {_explained(message)}; only text can be read, in parts {{"type": "text", "text": "…"}}.',
            place,
            "invalid_value",
        )
    if found := re.fullmatch(r"Object missing required field `(.*)`", message):
        return invalid(
            f"{place} has no {found[1]}; give one.", f"{place}.{found[1]}" if steps else place, "missing_field"
        )
    shown = begin.decode("utf-8", "replace")
    begin_sentence = f"{place} is {shown};" if not steps and len(shown) <= LONGEST_SHOWN else f"{place}:"
    return invalid(f"{begin_sentence} {_explained(message)}.", place, "invalid_value")


def _explained(message: str) -> str:
    """msgspec's word on a mistake, in ours."""
    if found := re.fullmatch(r"Expected `([^`]*)`, got `([^`]*)`", message):
        wanted = " or ".join(_WORDS.get(one.strip(), one.strip()) for one in found[1].split("|"))
        return f"give {wanted}, not {_WORDS.get(found[2], found[2])}"
    if found := re.fullmatch(r"Expected `([^`]*)` of length (<=|>=) (\d+)", message):
        unit = {"str": "characters", "array": "entries", "object": "fields"}.get(found[1], "entries")
        most = "at most" if found[2] == "<=" else "at least"
        return f"give {_WORDS.get(found[1], found[1])} of {most} {found[3]} {unit}"
    if message.startswith("Expected `str` matching regex"):
        return "give text of the form that GET /docs shows"
    if found := re.fullmatch(r"Expected `([^`]*)`( .*)?", message):
        return f"give {_WORDS.get(found[1], found[1])}{found[2] or ''}"
    if found := re.fullmatch(r"Invalid (?:enum )?value (.*)", message, re.DOTALL):
        return f"{shortened(found[1])} is not known here"
    return message[:1].lower() + message[1:]
