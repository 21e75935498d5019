"""The first mistake of a body's value, in a sentence with its path; and values without their unknown fields.

msgspec stops at the first mistake and says in English what and where it is. Of that only the path is read; the sentence
is made of the field's type and of the value that stands there.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import DecodeError, Raw, ValidationError, inspect

from inflight.counted import LONGEST_SHOWN, shortened
from inflight.server.errors import ApiError, invalid

_MAX_SEARCHED = 1 << 20  # bytes of a value in which a mistake is looked for by its path
_PATH = re.compile(r" - at (`key` in )?`\$?([^`]*)`$")
_KEY = "{}"  # a step to the name of an object's entry
_STEP = re.compile(r"\.([^.\[\]]+)|(\[(?:\d+|\.\.\.)\])")
HALF_CHARACTER = re.compile(  # of a surrogate pair, without the other half
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)
_fields_of = msgspec.json.Decoder(dict[str, Raw]).decode
_entries_of = msgspec.json.Decoder(list[Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


# -- values of another form --------------------------------------------------------------------------------------------


def wrong_value(name: str, type_: Any, error: ValidationError, given: Any) -> ApiError:
    """Return the error of a value that was read as another type than its own, as of a text for a number."""
    steps = _steps(error)
    value = given[int(steps[0][1:-1])] if steps and isinstance(given, list) else given
    return _wrong(name, _types_at(type_, steps), Raw(_encode(value)))


def without_unknown(name: str, type_: Any, raw: Raw, error: ValidationError) -> tuple[Raw, list[str]]:
    """Return the value without the unknown fields of the object that an error is about, and the paths of those that are
    not null. Raises ApiError for any other mistake."""
    steps = _steps(error)
    path, types = name + _path(steps), _types_at(type_, steps)
    may_have_unknown = any(isinstance(one, inspect.StructType) and one.forbid_unknown_fields for one in types)
    is_searched = may_have_unknown or not steps or len(memoryview(raw)) <= _MAX_SEARCHED
    try:
        value = _at(raw, steps) if is_searched else None
        fields = _fields_of(value) if value is not None and _begins(value, b"{") else None
        struct = None if fields is None else _struct_of(types, fields)
        if steps[-1:] == [_KEY]:
            path = f"A name in {path}"
        if struct is None or fields is None:
            raise _wrong(path, types, value)
        if missing := _missing(struct, fields):
            param = f"{path}.{missing}" if steps else path
            raise invalid(f"{shortened(path)} has no {missing}; give one.", param, "missing_field")
        extra = _unknown_of(struct, fields)
        if not extra:
            raise _wrong(path, types, value)
        cleaned, given = _without(raw, ["*" if one.startswith("[") else one for one in steps], extra)
    except UNREADABLE as fault:
        raise not_json(fault, bytes(memoryview(raw)), name) from None
    return cleaned, [f"{path}.{one}" for one in fields if one in given]


def _struct_of(types: Sequence[inspect.Type], fields: Mapping[str, Raw]) -> inspect.StructType | None:
    """Return the one of these types that an object with these fields is to be."""
    structs = [one for one in types if isinstance(one, inspect.StructType)]
    tagged = [one for one in structs if bytes(fields.get(one.tag_field or "", b"")) == _encode(one.tag)]
    return next(iter(tagged or structs), None)


def _missing(struct: inspect.StructType, fields: Mapping[str, Raw]) -> str | None:
    """Return the first field that an object has to have, and has not."""
    required = [one.encode_name for one in struct.fields if one.required]
    tag = [struct.tag_field] if struct.tag_field else []
    return next((one for one in (*tag, *required) if one not in fields), None)


def _unknown_of(struct: inspect.StructType, fields: Mapping[str, Raw]) -> set[str]:
    known = {one.encode_name for one in struct.fields} | {struct.tag_field}
    return fields.keys() - known if struct.forbid_unknown_fields else set()


def _without(raw: Raw, steps: Sequence[str], names: Set[str]) -> tuple[Raw, set[str]]:
    """Return the JSON without these fields of nested objects, and those of them that were not null anywhere.

    Args:
        steps: From the value to the objects: names of fields, and "*" for all entries of a list or an object.
    """
    if not steps and not _begins(raw, b"{"):
        return raw, set()
    if not steps:
        fields = _fields_of(raw)
        given = {name for name in names & fields.keys() if bytes(fields[name]) != b"null"}
        return Raw(_encode({name: value for name, value in fields.items() if name not in names})), given
    is_list = _begins(raw, b"[")
    entries: dict[Any, Raw] = dict(enumerate(_entries_of(raw))) if is_list else _fields_of(raw)
    found: set[str] = set()
    for key, entry in entries.items():
        if steps[0] in ("*", key) and (_begins(entry, b"{") or _begins(entry, b"[")):
            entries[key], given = _without(entry, steps[1:], names)
            found |= given
    return Raw(_encode(list(entries.values()) if is_list else entries)), found


def _begins(raw: Raw, mark: bytes) -> bool:
    return bytes(memoryview(raw)[:1]) == mark


def _wrong(path: str, types: Sequence[inspect.Type], raw: Raw | None) -> ApiError:
    """Return the error of a value that has not the form of one of the types. raw: None where it is unknown."""
    path, is_shown = shortened(path), raw is not None and len(memoryview(raw)) <= LONGEST_SHOWN
    value: Any = ... if raw is None else _decode_any(raw) if is_shown else _ALIKE.get(bytes(memoryview(raw)[:1]), 0)
    begin = f"{path} is {_quoted(value)};" if is_shown else f"{path}{_size(raw)}"
    same = [one for one in types if type(value) in _KINDS.get(type(one), ())]
    possible = [one for one in types if not isinstance(one, inspect.NoneType)]
    if is_shown and same and all(isinstance(one, inspect.LiteralType) for one in same):
        choices = [str(choice) for one in types if isinstance(one, inspect.LiteralType) for choice in one.values]
        sentence = f"{begin} it may be one of: {', '.join(choices)}"
    elif same or raw is None:
        number: float | None = value if is_shown and type(value) in (int, float) else None
        wanted = dict.fromkeys(_described(one, number) for one in same or possible)
        sentence = f"{begin} give {' or '.join(wanted)}"
    else:
        sentence = f"{begin} give {' or '.join(dict.fromkeys(_NAMES.get(type(one), 'an object') for one in possible))}"
    is_part = path.endswith(".type") and "content" in path
    hint = '; only text can be read, in parts {"type": "text", "text": "…"}' if is_part else ""
    return invalid(f"{sentence}{hint}.", path.removeprefix("A name in "), "invalid_value")


def _size(raw: Raw | None) -> str:
    """Return the size of a value that is too long to be shown: ` has 5,000 entries;`, or `:` where it has none."""
    kind, unit = _SIZED.get(b"" if raw is None else bytes(memoryview(raw)[:1]), (None, ""))
    if raw is None or kind is None:
        return ":"
    try:
        return f" has {len(msgspec.json.decode(raw, type=kind)):,} {unit};"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ":"


_SIZED: dict[bytes, tuple[Any, str]] = {
    b'"': (str, "characters"),
    b"[": (list[Raw], "entries"),
    b"{": (dict[str, Raw], "fields"),
}
_ALIKE: dict[bytes, Any] = {b'"': "", b"[": [], b"{": {}}  # a value of the same kind, by the first byte
_KINDS: dict[type[inspect.Type], tuple[type, ...]] = {
    inspect.StrType: (str,),
    inspect.LiteralType: (str,),
    inspect.IntType: (int,),
    inspect.FloatType: (int, float),
    inspect.BoolType: (bool,),
    inspect.ListType: (list,),
    inspect.DictType: (dict,),
    inspect.StructType: (dict,),
}


_NAMES: dict[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.LiteralType: "text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.ListType: "a list",
    inspect.NoneType: "null",
}


def _described(one: inspect.Type, number: float | None) -> str:
    """Return a type with its bounds. number: the value, of which the bounds are named that it breaks."""
    name = _NAMES.get(type(one), "an object")
    match one:
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, one.values))}"
        case inspect.IntType() | inspect.FloatType():
            bounds = ((">", one.gt, operator.gt), (">=", one.ge, operator.ge), ("<", one.lt, operator.lt))
            broken = [
                f"{sign} {bound}"
                for sign, bound, keeps in (*bounds, ("<=", one.le, operator.le))
                if bound is not None and (number is None or not keeps(number, bound))
            ]
            return " ".join([name, " and ".join(broken)]).strip()
        case inspect.StrType():
            form = "" if one.pattern is None else f" that matches {one.pattern}"
            return name + _lengths(one.min_length, one.max_length, "characters") + form
        case inspect.ListType():
            return name + _lengths(one.min_length, one.max_length, "entries")
        case inspect.DictType():
            return name + _lengths(one.min_length, one.max_length, "fields")
        case _:
            return name


def _lengths(least: int | None, most: int | None, unit: str) -> str:
    bounds = [*([f"at least {least:,}"] if least else []), *([] if most is None else [f"at most {most:,}"])]
    return f" of {' and '.join(bounds)} {unit}" if bounds else ""


def _quoted(value: Any) -> str:
    return repr(value) if isinstance(value, str) else _encode(value).decode()


# -- paths -------------------------------------------------------------------------------------------------------------


def _path(steps: list[str]) -> str:
    """Return the path that the steps lead to, without entries of objects, which msgspec does not name."""
    return "".join(one if one.startswith("[") else f".{one}" for one in steps if one not in ("[...]", _KEY))


def _types_at(type_: Any, steps: list[str]) -> list[inspect.Type]:
    """Return the types that a value may have behind these steps."""
    found = _alternatives(inspect.type_info(type_))
    for step in steps:
        found = [type_ for one in found for inner in _inside(one, step) for type_ in _alternatives(inner)]
    return found


def _alternatives(info: inspect.Type) -> list[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        return _alternatives(info.type)
    return list(info.types) if isinstance(info, inspect.UnionType) else [info]


def _inside(info: inspect.Type, step: str) -> list[inspect.Type]:
    if isinstance(info, inspect.ListType):
        return [info.item_type] if step.startswith("[") else []
    if isinstance(info, inspect.DictType):
        return [info.key_type if step == _KEY else info.value_type]
    if not isinstance(info, inspect.StructType):
        return []
    if step == info.tag_field:
        return [inspect.LiteralType((info.tag,))]
    return [one.type for one in info.fields if one.encode_name == step]


def _at(raw: Raw, steps: list[str]) -> Raw | None:
    """Return the value behind these steps; None where they are not exact."""
    for step in steps:
        if step in ("[...]", _KEY):
            return None
        raw = _entries_of(raw)[int(step[1:-1])] if step.startswith("[") else _fields_of(raw)[step]
    return raw


def _steps(error: ValidationError) -> list[str]:
    """Return the way to the mistake: names of fields, `[3]` for an entry of a list, `[...]` for one of an object, `{}`
    for the name of one."""
    found = _PATH.search(str(error))
    steps = [name or entry for name, entry in _STEP.findall(found[2] if found else "")]
    return [*steps, _KEY] if found and found[1] else steps


# -- no JSON -----------------------------------------------------------------------------------------------------------


def without_prefix(error: Exception) -> str:
    """Return where the JSON ends to be any."""
    return str(error).removeprefix("JSON is malformed: ")


def not_json(error: Exception, body: bytes, field: str | None = None) -> ApiError:
    """Return the error of bytes that are no JSON, or not in UTF-8."""
    if isinstance(error, RecursionError):
        return invalid("The body is nested too deeply; send less nested JSON.", field, "invalid_json")
    if HALF_CHARACTER.search(body) and (half := _half_character(body, field)) is not None:
        return half
    if isinstance(error, UnicodeDecodeError):
        return invalid("The body is not UTF-8; send JSON in UTF-8.", field, "invalid_json")
    return invalid(f"The body is not JSON: {without_prefix(error)}.", field, "invalid_json")


def _half_character(body: bytes, field: str | None) -> ApiError | None:
    """Return the error of half a surrogate pair, which no token stands for, by the field that holds it. The standard
    library's reader lets it through, and so finds it."""
    if len(body) > _MAX_SEARCHED:
        return invalid("The body contains a lone surrogate (half of a UTF-16 pair); send valid Unicode.", field)
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if field is not None:
        return _half_value(field)
    for name, value in read.items() if isinstance(read, dict) else ():
        if _is_half(name):
            return invalid(
                f"The name of the field {shortened(name)!r} contains a lone surrogate; leave it out.",
                shortened(name),
                "unknown_field",
            )
        if _is_half(json.dumps(value, ensure_ascii=False)):
            return _half_value(name)
    return None


def _half_value(field: str) -> ApiError:
    sentence = f"{shortened(field)} contains a lone surrogate (half of a UTF-16 pair); send valid Unicode."
    return invalid(sentence, shortened(field), "invalid_value")


def _is_half(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


# -- names of other APIs -----------------------------------------------------------------------------------------------


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Raise errors with the names that the endpoint's own body has.

    Args:
        names: By chat's fields, the longer before those that they begin with; one that begins with a dot is nested.
    """
    try:
        yield
    except ApiError as error:
        param = error.param or ""
        inner = next((one for one in names if one.startswith(".") and one in param), None)
        if inner is not None:
            param = param.replace(inner, names[inner], 1)
            error.message = error.message.replace(inner, names[inner])
        outer = next((one for one in names if re.match(rf"{re.escape(one)}(?![^.\[])", param)), None)
        if outer is not None:
            param = names[outer] + param.removeprefix(outer)
            known = re.escape(outer)
            error.message = re.sub(rf"\b{known}\b", names[outer], error.message, count=1)
            error.message = re.sub(rf"\b{known}(?=[.\[])", names[outer], error.message)
        error.param = param or None
        raise
