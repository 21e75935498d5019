"""From the bytes of a body to its fields, or to the first mistake in a sentence that names the field.

Knows JSON by msgspec, which stops at the first mistake and builds nothing that is not wanted: a body is first cut into
its fields as they lie there, unread; then each is read by its own type, or passed over. So a body costs what its bytes
cost, whatever is in it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Set
from typing import Any, Generic, NoReturn, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT, DecodeError, Raw, Struct, ValidationError
from msgspec.structs import fields as struct_fields

from inflight.server.errors import ApiError, invalid

B = TypeVar("B", bound=Struct)
V = TypeVar("V")

LONGEST_SHOWN = 60  # characters of a value or name in a sentence
_LONGEST_NEUTRAL = 256  # bytes of a value that may mean "not used"
_LONGEST_LOOKED_AT = 1 << 20  # bytes of a body in which half a character is looked for by name
_PATH = re.compile(r" - at `\$?([^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
HALF_CHARACTER = re.compile(  # of a surrogate pair, without the other half
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_ANY = msgspec.json.Decoder()
_ELSEWHERE = {"max_completion_tokens": "max_tokens", "max_new_tokens": "max_tokens", "n_predict": "max_tokens"}
_ELSEWHERE |= dict.fromkeys(("thinking_budget", "max_reasoning_tokens", "max_thinking_tokens"), "thinking_token_budget")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


class BodyDecoder(Generic[B]):
    """Of one endpoint. neutral: fields of other servers, with the values that mean "not used" and why any other is
    refused. hints: fields whose value changes no token, passed over unread."""

    def __init__(
        self,
        kind: type[B],
        neutral: dict[str, tuple[tuple[Any, ...], str]] | None = None,
        hints: Set[str] = frozenset(),
    ):
        self.kind = kind
        self._neutral = neutral or {}
        self._hints = hints
        types = get_type_hints(kind, include_extras=True)
        self._decoders = {one.name: msgspec.json.Decoder(types[one.name]) for one in struct_fields(kind)}
        self._required = [
            one.name for one in struct_fields(kind) if one.default is NODEFAULT and one.default_factory is NODEFAULT
        ]

    @property
    def names(self) -> Set[str]:
        """Of all fields that are known here, those that are refused among them."""
        return self._decoders.keys() | self._neutral.keys() | self._hints

    def decode(self, body: bytes | memoryview) -> B:
        """Raises ApiError 400."""
        values: dict[str, Any] = {}
        for name, raw in fields_of(body).items():
            decoder = self._decoders.get(name)
            if decoder is not None:
                values[name] = read_value(name, decoder, raw)
            elif name in self._neutral:
                self._check_neutral(name, raw)
            elif name not in self._hints:
                raise self._unknown(name)
        for name in self._required:
            if name not in values:
                raise invalid(f"The field {name!r} is missing.", name, "missing_field")
        return self.kind(**values)

    def _check_neutral(self, name: str, raw: Raw) -> None:
        unused, why = self._neutral[name]
        if len(memoryview(raw)) <= _LONGEST_NEUTRAL:
            try:
                value = _ANY.decode(raw)
            except _UNREADABLE as error:
                raise _not_json(error, bytes(memoryview(raw)), name) from None
            if value is None or any(value == one and (type(value) is bool) == (type(one) is bool) for one in unused):
                return
        raise invalid(f"The field {name!r} is not served: {why}", name, "unsupported_field")

    def _unknown(self, name: str) -> ApiError:
        near = _ELSEWHERE.get(name)
        if near not in self._decoders and len(name) <= LONGEST_SHOWN:
            near = next(iter(difflib.get_close_matches(name, self._decoders, 1)), None)
        hint = f" Did you mean {near!r}?" if near in self._decoders else ""
        name = shortened(name)
        return invalid(f"The field {name!r} is unknown here; leave it out.{hint}", name, "unknown_field")


def read_value(name: str, decoder: msgspec.json.Decoder[V], raw: Raw) -> V:
    """The value of a field, or of something in it that is read by itself. name: its place. Raises ApiError 400."""
    try:
        return decoder.decode(raw)
    except ValidationError as error:
        _raise_mistake(name, bytes(memoryview(raw)[: LONGEST_SHOWN + 1]), error)
    except _UNREADABLE as error:
        raise _not_json(error, bytes(memoryview(raw)), name) from None


def fields_of(body: bytes | memoryview) -> dict[str, Raw]:
    """The fields of a JSON object, unread. Raises ApiError 400."""
    try:
        return _FIELDS.decode(body)
    except ValidationError:
        raise invalid("The body is not a JSON object; send one, with Content-Type: application/json.") from None
    except _UNREADABLE as error:
        raise _not_json(error, bytes(body)) from None


def shortened(text: str) -> str:
    """Fit for a sentence; half a character, which no UTF-8 holds, as an escape."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


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


def _raise_mistake(field: str, begin: bytes, error: ValidationError) -> NoReturn:
    """begin: of the field's value, a little more than is shown."""
    message, inside = str(error), ""
    if found := _PATH.search(message):
        message, inside = message[: found.start()], found[1]
    steps = [name or number for name, number in _STEP.findall(inside)]
    place = shortened(".".join([field, *steps]))
    if steps[-1:] == ["type"] and "content" in steps:
        raise invalid(
            f'{place}: {_explained(message)}; only text can be read, in parts {{"type": "text", "text": "…"}}.',
            place,
            "invalid_value",
        )
    if found := re.fullmatch(r"Object missing required field `(.*)`", message):
        raise invalid(
            f"{place} has no {found[1]}; give one.", f"{place}.{found[1]}" if steps else place, "missing_field"
        )
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", message, re.DOTALL):
        name = shortened(found[1])
        raise invalid(
            f"The field {f'{place}.{name}'!r} is unknown here; leave it out.", f"{place}.{name}", "unknown_field"
        )
    shown = begin.decode("utf-8", "replace")
    begin_sentence = f"{place} is {shown};" if not steps and len(shown) <= LONGEST_SHOWN else f"{place}:"
    raise invalid(f"{begin_sentence} {_explained(message)}.", place, "invalid_value")


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
    if found := re.fullmatch(r"Expected `([^`]*)` (.*)", message):
        return f"give {_WORDS.get(found[1], found[1])} {found[2]}"
    if found := re.fullmatch(r"Invalid (?:enum )?value (.*)", message, re.DOTALL):
        return f"{shortened(found[1])} is not known here"
    return message[:1].lower() + message[1:]
