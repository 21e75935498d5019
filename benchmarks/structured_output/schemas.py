"""Schemas to measure with: one whose texts never end before their tokens do, and as many as are wanted that differ.

All are nested, with bounded strings and numbers, choices, lists and patterns, as functions and answers of agents have
them.
"""

from __future__ import annotations

import json
import random
from typing import Any

from inflight.core.types.sampling import Grammar

Schema = dict[str, Any]
ENDLESS = 100_000  # records


def record(words: tuple[str, ...] = ("alpha", "beta", "gamma")) -> Schema:
    """Two levels below it, and free text at its end."""
    size = {"width": {"type": "number", "minimum": 0, "maximum": 1000}, "unit": {"enum": ["mm", "cm", "inch"]}}
    return _object(
        {
            "id": {"type": "integer", "minimum": 0, "maximum": 100_000},
            "name": {"type": "string", "maxLength": 24},
            "kind": {"enum": list(words)},
            "size": _object(size),
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "maxItems": 3},
            "made": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            "note": {"type": "string"},
        }
    )


def endless() -> Grammar:
    """A list of records that no output comes to the end of."""
    return _grammar({"type": "array", "minItems": ENDLESS, "items": record()})


def never_seen(number: int, properties: int = 20) -> Grammar:
    """Another one for each number: names, choices and patterns are drawn, so that nothing of it is there already. Every
    fifth property is an object of its own."""
    chance = random.Random(f"schema {number}")
    return _grammar(_object({_name(chance): _drawn(chance, place) for place in range(properties)}))


def _drawn(chance: random.Random, place: int) -> Schema:
    words = [_name(chance) for _ in range(4)]
    match place % 5:
        case 0:
            return record(tuple(words))
        case 1:
            return {"enum": words}
        case 2:
            return {"type": "string", "maxLength": chance.randrange(8, 200)}
        case 3:
            least = chance.randrange(1000)
            return {"type": "integer", "minimum": least, "maximum": least + chance.randrange(1, 100_000)}
        case _:
            return {"type": "string", "pattern": f"^({words[0]}|{words[1]})-[0-9]{{{chance.randrange(2, 9)}}}$"}


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _name(chance: random.Random) -> str:
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randrange(4, 12)))


def _grammar(schema: Schema) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))
