"""Read a schema of any draft in one dialect: draft 2020-12, without annotations, each `$ref` naming one of `$defs`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from inflight.execution.grammars.compiling import GrammarError

Schema = dict[str, Any] | bool
FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)  # that are enforced
TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")
MAX_DEPTH = 200  # schemas within one another
_DRAFT = re.compile(r"https?://json-schema\.org/draft(?:/|-)0?(\d+)")
_NEWEST = 2020
_SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "$dynamicRef"), 2019),
    "prefixItems": 2020,
}
_COUNTS = frozenset(
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"]
)
_NUMBERS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
_SCHEMAS = frozenset(
    {"additionalProperties", "items", "contains", "propertyNames", "not", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_MAPS = frozenset(["properties", "patternProperties", "dependentSchemas"])
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_WITHOUT_SCHEMAS = frozenset({"const", "enum", "default", "examples", "example"})  # hold values, no schemas
_ANCHORS = ("$anchor", "$dynamicAnchor")


def in_one_dialect(document: Any) -> dict[str, Any]:
    """Return the schema `document` in one dialect, its references under `$defs`.

    A keyword counts where the draft that `$schema` names knows it; without `$schema` all count, in their old forms too.
    A format counts where it is enforced, and is an annotation otherwise.

    Raises:
        GrammarError: A keyword's value makes no sense, by name and place, or a part is in another document.
    """
    if not isinstance(document, dict | bool):
        raise GrammarError(f"is {str(document)[:40]}, which is no schema; give an object")
    return _Dialect(document).whole()


class _Dialect:
    def __init__(self, document: dict[str, Any] | bool) -> None:
        self._document = document
        named = document.get("$schema") if isinstance(document, dict) else None
        found = _DRAFT.match(named) if isinstance(named, str) else None
        self._draft = max(int(found.group(1)), 4) if found else _NEWEST
        has_none = not isinstance(document, dict) or "$schema" not in document
        self._references = References(document, old_ids=self._draft <= 4 or has_none)
        self._names: dict[int, str] = {}  # of definitions, by the identity of what they define
        self._left: list[tuple[str, Any, str]] = []  # definitions that are not read yet

    def whole(self) -> dict[str, Any]:
        read = self._read(self._document, "#", 0)
        root = {} if read is True else {"not": {}} if read is False else read
        definitions: dict[str, Schema] = {}
        while self._left:
            name, schema, place = self._left.pop()
            definitions[name] = self._read(schema, place, 0)
        return {**root, "$defs": definitions} if definitions else root

    def _read(self, schema: Any, place: str, depth: int) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarError(f"has {str(schema)[:40]!r} at {place}, which is no schema; give an object")
        if depth > MAX_DEPTH:
            raise GrammarError(f"is nested more than {MAX_DEPTH} deep at {place[:200]}; make it flatter")
        reference = next((name for name in _REFERENCES if isinstance(schema.get(name), str)), None)
        if reference is not None and self._draft <= 7:  # what stands beside it does not count
            return self._referring(reference, schema, place)
        read: dict[str, Any] = {}
        for name, value in schema.items():
            if name in _REFERENCES:
                if not isinstance(value, str):
                    raise _wrong(name, value, place, "a text")
                read |= self._referring(name, schema, place)
            elif self._draft >= _SINCE.get(name, 0):
                self._keyword(read, name, value, f"{place}/{escaped(name)}", depth + 1)
        return _in_new_forms(read)

    def _referring(self, keyword: str, within: dict[str, Any], place: str) -> dict[str, Any]:
        reference: str = within[keyword]
        found = self._references.resolve(keyword, reference, within, place)
        if isinstance(found, bool):
            return {} if found else {"enum": []}
        name = self._names.get(id(found))
        if name is None:
            name = self._names[id(found)] = f"d{len(self._names)}"
            self._left.append((name, found, reference if reference.startswith("#/") else f"#({reference})"))
        return {"$ref": f"#/$defs/{name}"}

    def _keyword(self, read: dict[str, Any], name: str, value: Any, place: str, depth: int) -> None:
        def schema(one: Any, at: str = "") -> Schema:
            return self._read(one, place + at, depth)

        if name in _LISTS or (name == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise _wrong(name, value, place, "a list of schemas")
            read["prefixItems" if name == "items" else name] = [schema(one, f"/{at}") for at, one in enumerate(value)]
        elif name in _MAPS:
            if not isinstance(value, dict):
                raise _wrong(name, value, place, "an object of schemas")
            read[name] = {key: schema(one, f"/{escaped(key)}") for key, one in value.items()}
        elif name in _SCHEMAS or name == "additionalItems":
            read[name] = schema(value)
        elif name == "dependencies":
            self._dependencies(read, value, place, schema)
        elif (reader := _VALUES.get(name)) is not None:
            reader(read, name, value, place)
        elif name in _COUNTS:
            read[name] = _count(name, value, place)
        elif name in _NUMBERS:
            if isinstance(value, bool) and name.startswith("exclusive"):
                read[name] = value
            elif isinstance(value, bool) or not isinstance(value, int | float) or not -inf < value < inf:
                raise _wrong(name, value, place, "a number")
            elif name == "multipleOf" and value <= 0:
                raise _wrong(name, value, place, "a number above 0")
            else:
                read[name] = value

    def _dependencies(self, read: dict[str, Any], value: Any, place: str, schema: Callable[..., Schema]) -> None:
        if not isinstance(value, dict):
            raise _wrong("dependencies", value, place, "an object")
        for key, one in value.items():
            if isinstance(one, dict | bool):
                read.setdefault("dependentSchemas", {})[key] = schema(one, f"/{escaped(key)}")
            else:
                names = [one] if isinstance(one, str) else _texts("dependencies", one, place)
                read.setdefault("dependentRequired", {})[key] = names


def _in_new_forms(read: dict[str, Any]) -> dict[str, Any]:
    """Return the same with the old forms of bounds and items in the new one."""
    for bound in ("minimum", "maximum"):
        exclusive = "exclusive" + bound.capitalize()
        if read.get(exclusive) is True and bound in read:
            read[exclusive] = read.pop(bound)
        elif isinstance(read.get(exclusive), bool):
            del read[exclusive]
    additional = read.pop("additionalItems", None)
    if additional is not None and "prefixItems" in read and "items" not in read:
        read["items"] = additional
    if "if" not in read:
        read.pop("then", None)
        read.pop("else", None)
    if "contains" not in read:
        read.pop("minContains", None)
        read.pop("maxContains", None)
    if read.get("uniqueItems") is False:
        del read["uniqueItems"]
    return read


def _read_types(read: dict[str, Any], name: str, value: Any, place: str) -> None:
    types = [value] if isinstance(value, str) else value
    if not isinstance(types, list) or not all(isinstance(one, str) for one in types):
        raise _wrong(name, value, place, "the name of a type or a list of them")
    if "any" in types:  # of draft 3
        return
    unknown = next((one for one in types if one not in TYPES), None)
    if unknown is not None:
        raise GrammarError(f"has type {unknown[:40]!r} at {place}; types are {', '.join(TYPES)}")
    read[name] = types[0] if len(types) == 1 else list(dict.fromkeys(types))


def _read_const(read: dict[str, Any], name: str, value: Any, place: str) -> None:
    read[name] = value


def _read_required(read: dict[str, Any], name: str, value: Any, place: str) -> None:
    if not isinstance(value, bool):  # as draft 3 wrote it in the property itself
        read[name] = _texts(name, value, place)


def _reader_of(kind: type, wanted: str) -> Callable[[dict[str, Any], str, Any, str], None]:
    def reader(read: dict[str, Any], name: str, value: Any, place: str) -> None:
        if not isinstance(value, kind):
            raise _wrong(name, value, place, wanted)
        if name != "format" or value in FORMATS:
            read[name] = value

    return reader


def _read_dependent(read: dict[str, Any], name: str, value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(name, value, place, "an object")
    read[name] = {key: _texts(name, one, f"{place}/{escaped(key)}") for key, one in value.items()}


_VALUES: dict[str, Callable[[dict[str, Any], str, Any, str], None]] = {
    "type": _read_types,
    "enum": _reader_of(list, "a list of values"),
    "const": _read_const,
    "required": _read_required,
    "pattern": _reader_of(str, "a text"),
    "format": _reader_of(str, "a text"),
    "uniqueItems": _reader_of(bool, "true or false"),
    "dependentRequired": _read_dependent,
}


def _texts(name: str, value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _wrong(name, value, place, "a list of texts")
    return list(dict.fromkeys(value))


def _count(name: str, value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf or value != int(value):
        raise _wrong(name, value, place, "a whole number of at least 0")
    return int(value)


def _wrong(name: str, value: Any, place: str, wanted: str) -> GrammarError:
    return GrammarError(f"has {name} {str(value)[:40]!r} at {place}; give {wanted}")


def both(one: Schema, other: Schema) -> Schema:
    """Return the schema of what is valid under both."""
    if one is True or other is True:
        return other if one is True else one
    return False if one is False or other is False else {"allOf": [one, other]}


def escaped(name: str) -> str:
    """Return a name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


class References:
    """Resolve references of one document by `$id`, anchor and JSON pointer."""

    def __init__(self, document: Any, old_ids: bool) -> None:
        """Index the document.

        Args:
            document: the whole schema.
            old_ids: whether `id` is an address, as in draft 4.
        """
        self._document = document
        self._id_names = ("$id", "id") if old_ids else ("$id",)
        self._resources: dict[str, Any] = {"": document}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._bases: dict[int, str] = {}  # by the identity of an object
        self._dynamic: Counter[str] = Counter()  # how often a name is a dynamic anchor; "" of the whole
        self._index()

    def resolve(self, keyword: str, reference: str, within: Any, place: str) -> Any:
        """Return the part that `reference`, read at the object `within`, names. Raises GrammarError."""
        found = self._found(keyword, reference, within, place)
        name = found.get("$dynamicAnchor", "") if isinstance(found, dict) else None
        if keyword != "$ref" and isinstance(name, str) and self._dynamic[name] > 1:
            raise GrammarError(
                f"has {keyword} {reference[:100]!r} at {place}, which names another part by the way it is reached; "
                "give $ref"
            )
        return found

    def _found(self, keyword: str, reference: str, within: Any, place: str) -> Any:
        base = self._bases.get(id(within), "")
        url, fragment = _without_fragment(base + reference if reference.startswith("#") else _joined(base, reference))
        if url not in self._resources:
            raise GrammarError(
                f"refers to {reference[:100]!r} ({keyword} at {place}), and schemas are not fetched; put it into "
                "$defs and refer to it as #/$defs/…"
            )
        fragment = unquote(fragment)
        is_pointer = not fragment or fragment.startswith("/")
        found = self._at_pointer(self._resources[url], fragment) if is_pointer else None
        if found is None:
            found = self._anchors.get((url, fragment))
        if found is None:
            raise GrammarError(f"refers to {reference[:100]!r} ({keyword} at {place}), which is not in it; define it")
        return found

    def _at_pointer(self, value: Any, pointer: str) -> Any:
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
        return value

    def _index(self) -> None:
        left: list[tuple[Any, str]] = [(self._document, "")]
        while left:
            value, base = left.pop()
            if isinstance(value, list):
                left += [(one, base) for one in value]
            elif isinstance(value, dict):
                base = self._own_base(value, base)
                self._bases[id(value)] = base
                left += [(one, base) for name, one in value.items() if name not in _WITHOUT_SCHEMAS]

    def _own_base(self, schema: dict[str, Any], base: str) -> str:
        for name in self._id_names:
            own = schema.get(name)
            if isinstance(own, str) and own.startswith("#"):
                self._anchors.setdefault((base, own[1:]), schema)
            elif isinstance(own, str) and own:
                base = _without_fragment(_joined(base, own))[0]
                self._resources.setdefault(base, schema)
        dynamic = "" if schema.get("$recursiveAnchor") is True else schema.get("$dynamicAnchor")
        if isinstance(dynamic, str):
            self._dynamic[dynamic] += 1
        for name in _ANCHORS:
            if isinstance(own := schema.get(name), str):
                self._anchors.setdefault((base, own), schema)
        return base


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address)
    except ValueError:  # it is no address
        return address


def _without_fragment(address: str) -> tuple[str, str]:
    """Return an address and its fragment, as they are written where it is no address."""
    try:
        before, fragment = urldefrag(address)
    except ValueError:
        before, _, fragment = address.partition("#")
    return before, fragment
