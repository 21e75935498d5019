"""JSON schemas drawn at random, with bounds, so that every text that follows one comes to an end."""

from __future__ import annotations

import json
import random
from typing import Any

Schema = dict[str, Any]
NAMES = ["a", "name", "größe", "x y", "tags", "n-1", 'quo"te', "日本", "id"]
CONSTANTS = ["red", "green", 'with "quotes"', "back\\slash", "ünï", 3, -4.5, None, True, "日本", "", [1, 2], {"k": []}]
PATTERNS = ["^[a-c]{2,5}$", "^(ab|cd)+e{0,2}$", r"^\d{3}-\d{4}$", "^[A-Z][a-zéü]{0,6}$", r"^\w{1,8}\.(txt|md)$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4"]


def drawn_schema(chance: random.Random) -> Schema:
    """As a client sends it: definitions stand at its root, where references look for them."""
    definitions: Schema = {}
    schema = json.loads(json.dumps(_drawn(chance, 3)), object_hook=lambda one: _taken(one, definitions))
    return {**schema, "$defs": definitions} if definitions else schema


def _taken(found: Schema, definitions: Schema) -> Schema:
    definitions.update(found.pop("$defs", {}))
    return found


def _drawn(chance: random.Random, depth: int) -> Schema:
    kinds = ["string", "integer", "number", "enum", "const", "boolean", "null"]
    kinds += ["object", "array", "tuple", "anyOf", "$ref"] * (depth > 0) * 2
    match chance.choice(kinds):
        case "string":
            return _string(chance)
        case "integer":
            least = chance.randrange(-500, 500)
            return {"type": "integer", "minimum": least, "maximum": least + chance.randrange(2000)}
        case "number":
            least, end = chance.choice([0, -2.5]), chance.choice([1, 10.25])
            return {"type": "number", "minimum": least, "exclusiveMaximum": end}
        case "enum":
            return {"enum": chance.sample(CONSTANTS, 3)}
        case "const":
            return {"const": chance.choice(CONSTANTS)}
        case "object":
            return _object(chance, depth)
        case "array":
            least = chance.randrange(2)
            most = least + chance.randrange(3)
            return {"type": "array", "items": _drawn(chance, depth - 1), "minItems": least, "maxItems": most}
        case "tuple":
            places = [_drawn(chance, depth - 1) for _ in range(chance.randrange(1, 4))]
            least = chance.randrange(len(places) + 1)
            return {"type": "array", "prefixItems": places, "items": False, "minItems": least}
        case "anyOf":
            return {"anyOf": [_drawn(chance, depth - 1) for _ in range(2)]}
        case "$ref":
            return _referring(chance, depth)
        case kind:
            return {"type": kind}


def _object(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(NAMES, chance.randrange(1, 5))
    properties = {name: _drawn(chance, depth - 1) for name in names}
    required = [name for name in names if chance.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _referring(chance: random.Random, depth: int) -> Schema:
    """One definition, asked for twice, under a name of its own: schemas are put into others."""
    name = f"d{chance.randrange(10**9)}"
    inner = {"$ref": f"#/$defs/{name}"}
    more: Schema = {"type": "array", "items": inner, "maxItems": 2}
    either: Schema = {"anyOf": [inner, {"type": "null"}]}
    return {
        "$defs": {name: _drawn(chance, depth - 1)},
        "type": "object",
        "properties": {"one": inner, "more": more} if chance.random() < 0.5 else {"one": either},
        "required": ["one"],
        "additionalProperties": False,
    }


def _string(chance: random.Random) -> Schema:
    least = chance.randrange(4)
    return chance.choice(
        [
            {"type": "string", "maxLength": chance.randrange(12)},
            {"type": "string", "minLength": least, "maxLength": least + chance.randrange(20)},
            {"type": "string", "pattern": chance.choice(PATTERNS)},
            {"type": "string", "format": chance.choice(FORMATS)},
            {"type": "string", "enum": ["one", "two"]},
        ]
    )
