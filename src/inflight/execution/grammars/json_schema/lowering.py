"""Lower a JSON schema to what the library can follow, which means the same, or more."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from inflight.execution.grammars.compiling import ALLOWS_NOTHING, GrammarError
from inflight.execution.grammars.json_schema import conditions, containers, numbers, texts
from inflight.execution.grammars.json_schema.answer_check import validator
from inflight.execution.grammars.json_schema.dialect import Schema, in_one_dialect
from inflight.execution.grammars.json_schema.facts import reached, types_of

# With `\\u` a declared name could be spelled otherwise than it is declared, and so have any value: it is left out, and
# control characters with it, where a schema names none.
_SHORT_ESCAPES, _ALL_ESCAPES = 'nrbtf\\"', 'nrbtf\\"u'
_CONTROLS = re.compile(r"\\u00[01]|\\u007f|\\\\(?:c[A-Za-z]|x[01][0-9a-fA-F]|u00[01]|0)")
MAX_EXACT = 2**53  # of numbers that the library reads as floats
_OF_TYPES = {
    **dict.fromkeys(containers.ARRAY_KEYWORDS, "array"),
    **dict.fromkeys(containers.OBJECT_KEYWORDS, "object"),
}


class Lowered(NamedTuple):
    """A schema in the library's terms.

    Attributes:
        text: the schema for the library, as JSON.
        check: the schema that a whole answer must be valid under, as JSON; None where the library's is as strict.
        escapes: that texts may be written with (`json_allowed_escapes`).
    """

    text: str
    check: str | None
    escapes: str


def lower(schema: Any, is_wide: bool = False) -> Lowered:
    """Return a schema as the library can follow it, which depends on the schema alone. Raises GrammarError.

    Args:
        schema: as a client sent it, read from JSON.
        is_wide: whether of conditions that hold of one value together only the first is followed, and numbers of
            properties are not, for schemas that the library does not take otherwise.
    """
    try:
        whole = in_one_dialect(schema)
        lowering = _Lowering(whole.get("$defs", {}), is_wide)
        text = json.dumps(lowering.whole(whole), allow_nan=False)
        has_controls = _CONTROLS.search(text) is not None
        check = json.dumps(whole, allow_nan=False) if lowering.left or has_controls else None
        return Lowered(text, check, _ALL_ESCAPES if has_controls else _SHORT_ESCAPES)
    except RecursionError:
        raise GrammarError("is nested too deep to be read; make it flatter") from None
    except ValueError as error:
        if isinstance(error, GrammarError):
            raise
        raise GrammarError(f"holds a value that JSON cannot write: {error}") from None


class _Lowering:
    """Lower one schema. left: keywords that are followed in part or not at all."""

    def __init__(self, definitions: dict[str, Schema], is_wide: bool) -> None:
        self.left: set[str] = set()
        self._definitions = definitions
        self._impossible: set[str] = set()  # definitions, as references
        self._is_wide = is_wide
        self._splits = conditions.MAX_SPLITS

    def whole(self, root: dict[str, Any]) -> Schema:
        lowered = self._separately({name: one for name, one in root.items() if name != "$defs"})
        if lowered is False:
            raise GrammarError(f"cannot be used: {ALLOWS_NOTHING}")
        lowered = {} if lowered is True else lowered
        definitions = {name: self._separately(one) for name, one in self._definitions.items()}
        impossible = {f"#/$defs/{name}" for name, one in definitions.items() if one is False}
        if impossible > self._impossible:  # the library refuses a schema that refers to one, wherever
            self._impossible = impossible
            return self.whole(root)
        return {**lowered, "$defs": definitions} if definitions else lowered

    def _separately(self, schema: Schema) -> Schema:
        """Lower the schema of a value of its own: a property, an item."""
        before, self._splits = self._splits, conditions.MAX_SPLITS
        lowered = self._lowered(schema)
        self._splits = before
        return lowered

    def _lowered(self, schema: Schema) -> Schema:
        if isinstance(schema, bool) or not schema:
            return schema is not False
        if "const" in schema or "enum" in schema:
            values, left = _possible(schema, self._definitions)
            self.left.update(left)
            return {"enum": values} if values else False
        types = types_of(schema)
        if not types or schema.get("$ref") in self._impossible:
            return False
        schema = {name: one for name, one in schema.items() if _OF_TYPES.get(name, "") in {"", *types}}
        given = conditions.resolved(schema, self._definitions, self._splits)
        self._splits = given.splits_left
        self.left.update(given.left)
        if isinstance(given.schema, bool):
            return given.schema
        schema = given.schema
        more = numbers.unwritten(schema, types)
        for rewrite in (numbers.bounded, texts.writable, containers.array_items):
            found, left = rewrite(schema, types)
            self.left.update(left)
            if isinstance(found, bool):
                return found
            schema = found
        if self._is_wide and (counts := {"minProperties", "maxProperties"} & schema.keys()):
            self.left.update(counts)
            schema = {name: one for name, one in schema.items() if name not in counts}
        if "object" in types_of(schema):
            ways, left = containers.object_members(schema, self._definitions)
            self.left.update(left)
        else:
            ways = [schema]
        if not ways and (others := sorted(types_of(schema) - {"object"})):  # no object is valid
            ways = [{**{name: one for name, one in schema.items() if _OF_TYPES.get(name) != "object"}, "type": others}]
        ways += [{"enum": more}] * bool(more)
        lowered = [self._descended(way, given.parts) for way in ways]
        lowered = [one for one in lowered if one is not False]
        return lowered[0] if len(lowered) == 1 else {"anyOf": lowered} if lowered else False

    def _descended(self, schema: dict[str, Any], parts: list[Schema]) -> Schema:
        """Lower what a schema is made of, and add conditions that hold beside it."""
        lowered: dict[str, Any] = {}
        for name, value in schema.items():
            if name in ("properties", "patternProperties"):
                lowered[name] = {key: self._separately(one) for key, one in value.items()}
            elif name in ("additionalProperties", "items"):
                lowered[name] = self._separately(value)
            elif name == "prefixItems":
                lowered[name] = [self._separately(one) for one in value]
            elif name == "anyOf":
                ways = [self._lowered(one) for one in value]
                if True not in ways:
                    lowered[name] = [one for one in ways if one is not False]
            elif name != "allOf":
                lowered[name] = value
        together = [self._lowered(one) for one in [*schema.get("allOf", ()), *parts]]
        if False in together or lowered.get("anyOf") == []:
            return False
        together = [one for one in together if one is not True]
        if self._is_wide:
            return self._first(lowered, together)
        if together and not lowered and len(together) == 1:
            return together[0]
        return {**lowered, "allOf": together} if together else lowered or True

    def _first(self, lowered: dict[str, Any], together: list[Schema]) -> Schema:
        """Return the one of conditions that hold together that says most."""
        parts: list[Schema] = [{name: one for name, one in lowered.items() if name not in ("$ref", "anyOf")}]
        parts += [{str(name): lowered[name]} for name in ("$ref", "anyOf") if name in lowered]
        parts += together
        parts = [one for one in parts if one]
        if len(parts) > 1:
            self.left.add("allOf")
        return max(parts, key=_weight, default=True)


def _weight(schema: Schema) -> int:
    """Rate how much a schema says: declared properties first."""
    if isinstance(schema, bool):
        return 0
    properties = len(schema.get("properties", ())) + len(schema.get("required", ()))
    return 10 * properties + 5 * ("$ref" in schema) + 3 * ("anyOf" in schema) + len(schema)


def _possible(schema: dict[str, Any], definitions: Mapping[str, Schema]) -> tuple[list[Any], list[str]]:
    """Return the values of `enum` and `const` that are valid, and keywords that only the check at the end follows."""
    values = list({json.dumps(one): one for one in schema.get("enum", [schema.get("const")])}.values())
    rest = {name: one for name, one in schema.items() if name != "enum"}
    if values and rest:
        is_valid = validator({**rest, "$defs": reached(rest, definitions)}).is_valid
        values = [one for one in values if is_valid(one)]
    return values, ["enum"] if any(map(_is_inexact, values)) else []


def _is_inexact(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_inexact, value))
    if isinstance(value, dict):
        return any(map(_is_inexact, value.values()))
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) > MAX_EXACT
