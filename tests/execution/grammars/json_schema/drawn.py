"""Schemas of each keyword drawn at random, values near what they bound, and texts that their masks let end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice, permutations, product
from typing import Any

import jsonschema
from llguidance import LLMatcher, LLTokenizer

from inflight.core.types.sampling import Grammar
from inflight.execution.grammars.compiling import GrammarError
from inflight.execution.grammars.grammar_source import grammar_source
from inflight.execution.grammars.json_schema.answer_check import AnswerChecks
from inflight.execution.grammars.vocabulary import Vocabulary

Schema = dict[str, Any]
BYTES = LLTokenizer("byte")
VOCABULARY = Vocabulary("", 256, 256, (0,))
NAMES = ["a", "b", "ab", "c"]
TEXTS = ["", "a", "b", "ab", "abc", "x1", "1"]
SPELLINGS = 216  # all orders of three objects of three properties
MAX_BYTES = 400


def _number(chance: random.Random) -> float:
    whole = chance.choice([-11, -4, -1, 0, 0, 1, 3, 9, 10, 100])
    return chance.choice([whole, whole, whole + chance.choice([0.5, 0.1, 0.25, -0.5, 0.05])])


def _numbers(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": chance.choice(["number", "number", "integer"])}
    low = _number(chance)
    high = chance.choice([_number(chance), low + chance.choice([0.1, 0.5, 0.75, 1, 2])])
    if chance.random() < 0.8:
        schema[chance.choice(["minimum", "exclusiveMinimum"])] = low
    if chance.random() < 0.8:
        schema[chance.choice(["maximum", "exclusiveMaximum"])] = high
    if chance.random() < 0.3:
        schema["multipleOf"] = chance.choice([1, 2, 3, 7, 0.5, 2.5, 99_991])
    return schema


def _texts(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    if chance.random() < 0.6:
        schema["pattern"] = chance.choice(
            [
                "^a",
                "b$",
                "^[ab]{1,3}$",
                "^(?!b)[a-z]*$",
                "^(?=.*1)[a-z0-9]+$",
                "1",
                r"^\w+$",
                "^(?!^[-+.]*$)[+-]?0*\\d*$",
            ]
        )
    if chance.random() < 0.4:
        schema["minLength"] = chance.randrange(3)
    if chance.random() < 0.4:
        schema["maxLength"] = chance.randrange(1, 5)
    if chance.random() < 0.2:
        schema["format"] = chance.choice(["path", "password", "binary", "x-own"])
    return schema


def _listed(chance: random.Random, depth: int) -> Schema:
    values = [*TEXTS[:4], 0, 1, 2.5, None, True, [1], {"a": 1}]
    schema: Schema = {"enum": chance.sample(values, 3)} if chance.random() < 0.7 else {"const": chance.choice(values)}
    return schema | chance.choice(
        [{}, {}, {"type": "string"}, {"minLength": 1}, {"not": {"const": "a"}}, {"maximum": 1}]
    )


def _arrays(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "array"}
    if chance.random() < 0.8:
        schema["items"] = drawn(chance, depth - 1)
    if chance.random() < 0.3:
        schema["prefixItems"] = [drawn(chance, depth - 1) for _ in range(chance.randrange(1, 3))]
    if chance.random() < 0.4:
        schema["uniqueItems"] = True
    if chance.random() < 0.3:
        schema["contains"] = drawn(chance, 0)
        if chance.random() < 0.4:
            schema[chance.choice(["minContains", "maxContains"])] = chance.randrange(3)
    if chance.random() < 0.3:
        schema["minItems"] = chance.randrange(3)
    schema["maxItems"] = chance.randrange(4)
    if chance.random() < 0.15:
        schema["unevaluatedItems"] = False
    return schema


def _objects(chance: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "object"}
    names = chance.sample(NAMES, chance.randrange(4))
    if names:
        schema["properties"] = {name: drawn(chance, depth - 1) for name in names}
    if chance.random() < 0.6:
        schema["required"] = [name for name in names if chance.random() < 0.5] or ["a"][: chance.randrange(2)]
    if chance.random() < 0.3:
        patterns = chance.sample(["^a", "b$", "^a$", "^(a|b)$", "^(?!a)", "[ab]"], chance.randrange(1, 3))
        schema["patternProperties"] = {pattern: drawn(chance, depth - 1) for pattern in patterns}
    schema["additionalProperties"] = chance.choice([False, False, drawn(chance, 0)])
    if chance.random() < 0.2:
        schema["propertyNames"] = chance.choice(
            [{"enum": ["a", "b"]}, {"pattern": "^a"}, {"maxLength": 1}, {"const": "a"}]
        )
    if chance.random() < 0.3:
        schema[chance.choice(["minProperties", "maxProperties"])] = chance.randrange(4)
    if chance.random() < 0.2:
        schema["dependentRequired"] = {chance.choice(NAMES): chance.sample(NAMES, 1)}
    if chance.random() < 0.15:
        schema["dependentSchemas"] = {chance.choice(NAMES): {"required": chance.sample(NAMES, 1)}}
    return schema


def _together(chance: random.Random, depth: int) -> Schema:
    ways = [drawn(chance, depth - 1) for _ in range(chance.randrange(1, 4))]
    if chance.random() < 0.3:
        names = chance.sample(NAMES, 2)
        ways = [{"required": [name]} for name in names]
    schema: Schema = {chance.choice(["anyOf", "oneOf", "oneOf", "allOf"]): ways}
    return schema | (_objects(chance, depth) if chance.random() < 0.4 else {})


def _conditions(chance: random.Random, depth: int) -> Schema:
    name = chance.choice(NAMES)
    conditions: list[Schema] = [
        {"properties": {name: {"const": "a"}}, "required": [name]},
        {"required": [name]},
        {"type": "string"},
        {"minimum": 1},
        {"properties": {name: {"type": ["string", "null"]}}},
    ]
    schema: Schema = chance.choice([drawn(chance, depth - 1), _objects(chance, depth)])
    condition = chance.choice(conditions)
    if chance.random() < 0.5:
        return schema | {
            "not": chance.choice([condition, {"const": "a"}, {"enum": ["a", None]}, {"anyOf": conditions[1:3]}])
        }
    return schema | {"if": condition, "then": {"required": ["b"]}, "else": drawn(chance, 0)}


def _plain(chance: random.Random, depth: int) -> Schema:
    return {"type": chance.choice(["null", "boolean", "string", "integer", ["string", "null"]])}


def _closed(chance: random.Random, depth: int) -> Schema:
    base: Schema = {"properties": {"a": drawn(chance, 0)}, "type": "object"}
    return {chance.choice(["allOf", "anyOf"]): [base, {"properties": {"b": True}}], "unevaluatedProperties": False} | (
        {"properties": {"c": {"type": "null"}}} if chance.random() < 0.5 else {}
    )


KINDS: dict[str, Callable[[random.Random, int], Schema]] = {
    "numbers": _numbers,
    "texts": _texts,
    "values": _listed,
    "arrays": _arrays,
    "objects": _objects,
    "combined": _together,
    "conditions": _conditions,
    "unevaluated": _closed,
}


def drawn(chance: random.Random, depth: int) -> Schema:
    return chance.choice([*KINDS.values()] if depth > 0 else [_numbers, _texts, _listed, _plain])(chance, depth)


def value(chance: random.Random, depth: int = 2) -> Any:
    """Any JSON value, often near what is bounded."""
    kinds = ["number", "text", "word", "array", "object", "object"] if depth else ["number", "text", "word"]
    match chance.choice(kinds):
        case "number":
            return chance.choice([_number(chance), round(_number(chance) + chance.choice([0.01, -0.01, 1, -1]), 3)])
        case "text":
            return chance.choice(TEXTS)
        case "word":
            return chance.choice([None, True, False])
        case "array":
            return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {name: value(chance, depth - 1) for name in chance.sample(NAMES, chance.randrange(4))}


class Compiled:
    """Compile a schema over single bytes, with the check of complete texts. Raises GrammarError."""

    def __init__(self, schema: Any) -> None:
        for is_wide in (False, True):
            source = grammar_source(Grammar("json_schema", json.dumps(schema)), VOCABULARY, is_wide)
            self._matcher = LLMatcher(BYTES, source.text, log_level=0)
            if not self._matcher.is_error():
                break
        else:
            raise GrammarError(self._matcher.get_error())
        self.checks = AnswerChecks(source.checks) if source.checks else None

    def takes(self, text: str) -> bool:
        matcher, written = self._matcher.deep_copy(), text.encode()
        if matcher.try_consume_tokens(list(written)) < len(written) or not matcher.is_accepting():
            return False
        return self.checks is None or self.checks.fault("", written) is None

    def walked(self, chance: random.Random) -> str | None:
        """A text that masks let end, drawn byte by byte; None where it comes to no end, or the check stops it."""
        matcher, text = self._matcher.deep_copy(), b""
        while len(text) < MAX_BYTES:
            mask = matcher.compute_bitmask()
            allowed = [one for one in range(256) if mask[one >> 3] >> (one & 7) & 1]
            if matcher.is_accepting() and (not allowed or chance.random() < 0.5):
                return text.decode() if self.checks is None or self.checks.fault("", text) is None else None
            assert allowed, f"a dead end behind {text!r}"
            likely = [one for one in allowed if one in b'"}],:{ab1'] if chance.random() < 0.8 else []
            text += bytes([chance.choice(likely or allowed)])
            assert matcher.consume_token(text[-1]), text
        return None


def is_valid(schema: Any, one: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(one)


def spellings(one: Any) -> Iterator[str]:
    """Properties in any order, whole numbers without a point."""
    if isinstance(one, dict):
        for items in islice(permutations(one.items()), SPELLINGS):
            for texts in islice(product(*(list(spellings(part)) for _, part in items)), SPELLINGS):
                yield "{" + ",".join(f"{json.dumps(n)}:{t}" for (n, _), t in zip(items, texts, strict=True)) + "}"
    elif isinstance(one, list):
        for texts in islice(product(*(list(spellings(part)) for part in one)), SPELLINGS):
            yield "[" + ",".join(texts) + "]"
    else:
        yield json.dumps(int(one) if isinstance(one, float) and one.is_integer() else one)
