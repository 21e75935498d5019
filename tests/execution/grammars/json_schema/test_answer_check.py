"""The check of whole answers names keyword and place, and ends whatever a schema and an answer hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inflight.execution.grammars.compiling import GrammarError
from inflight.execution.grammars.json_schema.answer_check import MAX_BYTES, AnswerChecks

LINKED = {"$ref": "#/$defs/t", "$defs": {"t": {"properties": {"a": {"$ref": "#/$defs/t"}, "b": {"not": {"const": 1}}}}}}


def fault(schema: Any, text: str) -> str | None:
    return AnswerChecks({"x": json.dumps(schema)}).fault("x", text.encode())


@pytest.mark.parametrize(
    ("schema", "text", "said"),
    [
        ({"properties": {"a/b": {"uniqueItems": True}}}, '{"a/b":[1,1]}', "uniqueItems at /a~1b: "),
        ({"oneOf": [{"type": "number"}, {"multipleOf": 2}]}, "4", "oneOf at its root: "),
        ({"items": {"not": {"const": 1}}}, "[2,1]", "not at /1: "),
        ({}, "{", "cannot be read"),
        ({}, "[" * 100_000 + "]" * 100_000, "cannot be read"),
        ({}, f'"{"x" * MAX_BYTES}"', "bytes"),
        ({"pattern": r"^(?=a)(a|aa)+\1$"}, f'"{"a" * 5_000}b"', "at its root"),
        ({"multipleOf": 0.01}, "0.075", "multipleOf"),
    ],
)
def test_what_is_wrong_is_said_by_keyword_and_place(schema: Any, text: str, said: str) -> None:
    sentence = fault(schema, text)
    assert sentence is not None and said in sentence and len(sentence) < 400


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"uniqueItems": True}, json.dumps([[n] for n in range(20_000)])),
        (LINKED, '{"a":' * 500 + "{}" + "}" * 500),
        ({"$ref": "#"}, "1"),
        ({"multipleOf": 0.01}, "19.99"),
        ({"pattern": "^(a+)+$"}, f'"{"a" * 50_000}"'),
    ],
)
def test_large_and_deep_answers_are_checked(schema: Any, text: str) -> None:
    assert fault(schema, text) is None


def test_a_pattern_that_is_none_is_refused_by_place() -> None:
    with pytest.raises(GrammarError, match=r"#/properties/a/pattern"):
        AnswerChecks({"": '{"properties": {"a": {"pattern": "("}}}'})
