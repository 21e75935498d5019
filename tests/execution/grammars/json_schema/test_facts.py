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
from inflight.execution.grammars.json_schema.lowering import lower

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


def test_what_is_reached_by_many_references_may_be_anything() -> None:
    chain: dict[str, Any] = {f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(40)}
    chain |= {"d40": {"type": "string"}}
    near, far = ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": f"#/$defs/d{n}"}}} for n in (40, 0))
    number = {"type": "object", "required": ["a"], "properties": {"a": {"type": "number"}}}
    assert overlaps([near, number], chain) == {} and negated(near, chain) is not None
    assert overlaps([far, number], chain) == {0: {1}, 1: {0}} and negated(far, chain) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"patternProperties": {"^a": {"$ref": "#/$defs/d0"}}, "additionalProperties": False}, {"required": ["ab"]}),
        ({"prefixItems": [{"$ref": "#/$defs/d0"}], "items": False}, {"type": "array", "minItems": 1}),
        ({"allOf": [{"$ref": "#/$defs/d0"}], "unevaluatedProperties": False}, {"required": ["a"]}),
        ({"not": {"$ref": "#/$defs/d0"}}, {"type": "object"}),
    ],
)
def test_what_a_reference_says_is_not_left_out_of_what_depends_on_it(one: Any, other: Any) -> None:
    definitions = {"d0": {"properties": {"a": {"$ref": "#/$defs/d1"}}}, "d1": {"$ref": "#/$defs/d2"}, "d2": {}}
    for sides in ([one, other], [{"allOf": [one]}, other], [{"properties": {"x": one}, "required": ["x"]}, other]):
        assert overlaps(sides, definitions) == {0: {1}, 1: {0}}


def test_alternatives_that_refer_to_each_other_are_compared_in_little_time() -> None:
    names = [f"n{n}" for n in range(150)]
    node = {"$ref": "#/$defs/any"}
    nodes: dict[str, Any] = {
        one: {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": one}, "left": node, "right": node},
        }
        for one in names
    }
    lowered = lower({**node, "$defs": nodes | {"any": {"oneOf": [{"$ref": f"#/$defs/{one}"} for one in names[:100]]}}})
    assert lowered.check is None


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
