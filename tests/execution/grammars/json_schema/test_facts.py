"""Opposites and overlaps of schemas are right wherever they are found, and contradictions are named by their place."""

from __future__ import annotations

import random
from typing import Any

import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from inflight.execution.grammars.json_schema.dialect import in_one_dialect
from inflight.execution.grammars.json_schema.facts import contradiction, negated, overlaps

from .drawn import KINDS, is_valid, value


@examples(200)
@given(seed=st.integers(0, 10**9))
def test_an_opposite_is_valid_exactly_where_its_schema_is_not(seed: int) -> None:
    chance = random.Random(seed)
    schema = in_one_dialect(chance.choice([*KINDS.values()])(chance, 1))
    opposite = negated(schema, {})
    if opposite is not None:
        for one in (value(chance) for _ in range(30)):
            assert is_valid(schema, one) != is_valid(opposite, one), (schema, opposite, one)


@examples(200)
@given(seed=st.integers(0, 10**9))
def test_schemas_that_do_not_overlap_are_never_valid_together(seed: int) -> None:
    chance = random.Random(seed)
    one, other = (in_one_dialect(chance.choice([*KINDS.values()])(chance, 1)) for _ in range(2))
    if not overlaps([one, other], {}):
        assert not any(is_valid(one, each) and is_valid(other, each) for each in (value(chance) for _ in range(50)))


@pytest.mark.parametrize(
    ("schema", "opposite"),
    [
        ({"type": "string"}, {"type": ["null", "boolean", "number", "array", "object"]}),
        ({"required": ["a"]}, {"type": "object", "properties": {"a": False}}),
        ({"minimum": 1}, {"type": "number", "exclusiveMaximum": 1}),
        ({"$ref": "#/$defs/d0"}, {"type": ["boolean", "number", "string", "array", "object"]}),
        ({"pattern": "^a"}, None),
        ({"type": "number", "multipleOf": 2}, None),
        (True, False),
    ],
)
def test_an_opposite_is_found_where_it_has_a_form_without_not(schema: Any, opposite: Any) -> None:
    assert negated(schema, {"d0": {"type": "null"}}) == opposite


def test_what_refers_to_too_much_overlaps_everything() -> None:
    chain: dict[str, Any] = {f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(300)}
    chain |= {"d300": {"type": "string"}}
    assert overlaps([{"$ref": "#/$defs/d0", "type": "null"}, {"type": "string"}], chain) == {0: {1}, 1: {0}}
    assert overlaps([{"$ref": "#/$defs/d299", "type": "null"}, {"type": "string"}], chain) == {}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "oneOf at #"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "minLength and maxLength at #"),
        (
            {"type": "object", "properties": {"a": {"minimum": 5, "maximum": 3, "type": "integer"}}, "required": ["a"]},
            "minimum and maximum at #/properties/a",
        ),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "type at #/allOf/0, type at #/allOf/1"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, None),
        ({"type": "object", "properties": {"a": {"enum": []}}}, None),
    ],
)
def test_a_contradiction_is_named_by_its_keywords_and_place(schema: Any, said: str | None) -> None:
    assert contradiction(schema) == said
