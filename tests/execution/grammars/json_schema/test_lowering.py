"""All that masks let end is valid, and all that is valid can be written, of schemas of every keyword drawn at
random."""

from __future__ import annotations

import json
import random
import re
from itertools import islice
from typing import Any

import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from inflight.execution.grammars.compiling import GrammarError
from inflight.execution.grammars.json_schema.lowering import lower

from .drawn import KINDS, Compiled, is_valid, spellings, value

PYDANTIC: dict[str, tuple[Any, list[str], list[str]]] = {
    "set": (
        {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b"]}},
        ["[]", '["b","a"]'],
        ['["a","a"]', '["a","b","a"]'],
    ),
    "dict of an enum": (
        {
            "$defs": {"Colour": {"enum": ["red", "blue"], "type": "string"}},
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/Colour"},
            "additionalProperties": {"type": "integer"},
        },
        ["{}", '{"red":1}', '{"red":1,"blue":2}'],
        ['{"green":1}', '{"red":1,"red":2}', '{"red":"x"}'],
    ),
    "path": ({"type": "string", "format": "path"}, ['"/tmp/x"'], ["1"]),
    "decimal": (
        {
            "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}],
            "title": "Price",
        },
        ["1.5", '"12.50"'],
        ['"+."', '"x"'],
    ),
    "discriminated union": (
        {
            "$defs": {
                "Cat": {"type": "object", "properties": {"pet": {"const": "cat"}}, "required": ["pet"]},
                "Dog": {"type": "object", "properties": {"pet": {"const": "dog"}}, "required": ["pet"]},
            },
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            "discriminator": {"propertyName": "pet", "mapping": {"cat": "#/$defs/Cat"}},
        },
        ['{"pet":"cat"}', '{"pet":"dog","x":1}'],
        ['{"pet":"cow"}', "{}"],
    ),
    "condition": (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}},
            "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
            "then": {"required": ["n"]},
            "additionalProperties": False,
        },
        ["{}", '{"kind":"b"}', '{"kind":"a","n":1}'],
        ['{"kind":"a"}'],
    ),
    "contains": (
        {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "maxItems": 3},
        ["[2]", "[1,2]"],
        ["[]", "[1]", "[1,1,1]"],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@examples(60)
@given(seed=st.integers(0, 10**9))
def test_what_ends_is_valid_and_what_is_valid_can_be_written(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    schema = KINDS[kind](chance, 2)
    values = [value(chance) for _ in range(20)]
    valid = [one for one in values if is_valid(schema, one)]
    try:
        compiled = Compiled(schema)
    except GrammarError as error:
        assert not valid, (schema, error)
        return
    for _ in range(2):
        text = compiled.walked(chance)
        # The validator divides floats, which whole numbers of 16 digits and more do not fit into.
        assert text is None or re.search(r"\d{16}", text) or is_valid(schema, json.loads(text)), (schema, text)
    for one in values:
        written = any(compiled.takes(text) for text in islice(spellings(one), 1000))
        assert written == (one in valid and is_valid(schema, one)), (schema, one)


@pytest.mark.parametrize("name", PYDANTIC)
def test_everyday_schemas_are_followed(name: str) -> None:
    schema, valid, invalid = PYDANTIC[name]
    compiled = Compiled(schema)
    assert [text for text in valid if not compiled.takes(text)] == []
    assert [text for text in invalid if compiled.takes(text)] == []


@pytest.mark.parametrize(
    ("bounds", "text", "between"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "0", "0.0001"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.1}, "0", "0.05"),
        ({"exclusiveMinimum": 3, "maximum": 3.5}, "3", "3.5"),
        ({"exclusiveMinimum": 100, "exclusiveMaximum": 100.1}, "100", "100.05"),
        ({"exclusiveMinimum": -4.5, "exclusiveMaximum": -4}, "-4", "-4.25"),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, "-0", "-0.5"),
        ({"minimum": 0, "exclusiveMinimum": True, "maximum": 0.5}, "0", "0.5"),
    ],
)
def test_an_excluded_bound_is_not_written(bounds: dict[str, Any], text: str, between: str) -> None:
    compiled = Compiled({"type": "number", **bounds})
    assert compiled.checks is None and compiled.takes(between)
    assert not compiled.takes(text) and not compiled.takes(text + ".0")


@pytest.mark.parametrize(
    ("bounds", "texts", "others"),
    [
        ({"exclusiveMinimum": -0.95}, {"-0.9", "-0.94"}, {"-0.95", "-1"}),
        ({"maximum": 100.955}, {"100", "100.9", "100.95", "100.955"}, {"100.96", "101"}),
        ({"exclusiveMaximum": 2.305}, {"2.3", "2.304"}, {"2.305", "2.31"}),
        ({"minimum": 0.9, "maximum": 0.955}, {"0.9", "0.95", "0.955"}, {"0.8", "0.96"}),
        ({"minimum": 0.95, "exclusiveMaximum": 0.955}, {"0.95", "0.954"}, {"0.9", "0.955"}),
        ({"minimum": -0.955, "maximum": 0.25}, {"-0.95", "-0.9", "0.2", "0.25"}, {"-0.96", "0.3"}),
        ({"minimum": 100.05, "maximum": 100.14999999999999}, {"100.05", "100.1", "100.14", "100.14999"}, {"100.15"}),
        ({"minimum": -0.15000000000000002, "maximum": 0.5}, {"-0.15", "-0.1", "0.5"}, {"-0.16", "-0.1500001"}),
        ({"maximum": 20.5, "multipleOf": 0.25}, {"20.5", "20.25", "20"}, {"20.75", "20.4", "21"}),
        ({"minimum": -7.6, "maximum": 20.6, "multipleOf": 0.25}, {"-7.5", "20.5"}, {"-7.75", "20.75"}),
    ],
)
def test_numbers_that_a_bound_begins_with_are_written(
    bounds: dict[str, Any], texts: set[str], others: set[str]
) -> None:
    compiled = Compiled({"type": "number", **bounds})
    assert {text for text in texts | others if compiled.takes(text)} == texts


def test_conditions_beside_a_bound_hold_of_the_numbers_that_it_begins_with() -> None:
    impossible = {"type": "number", "maximum": 0.95, "not": {"required": ["a"]}}  # `required` is true of numbers
    assert not Compiled(impossible).takes("0.9")


@pytest.mark.parametrize(
    ("bounds", "texts"),
    [
        ({"minimum": 10.05, "maximum": 10.55, "multipleOf": 0.5}, {"10.5"}),
        ({"minimum": -10.55, "maximum": -10.05, "multipleOf": 0.5}, {"-10.5"}),
        ({"exclusiveMinimum": 10, "maximum": 11.05, "multipleOf": 0.5}, {"10.5", "11", "11.0"}),
        ({"exclusiveMinimum": 7, "exclusiveMaximum": 21, "multipleOf": 7}, {"14"}),
    ],
)
def test_bounds_finer_than_the_step_leave_its_multiples(bounds: dict[str, Any], texts: set[str]) -> None:
    compiled, chance = Compiled({"type": "number", **bounds}), random.Random(1)
    assert {compiled.walked(chance) for _ in range(60)} <= texts and all(compiled.takes(text) for text in texts)


@pytest.mark.parametrize("pattern", ["^grade$", "^(grade|level)$", "^[g]rade$"])
def test_patterns_of_declared_names_come_to_no_dead_end(pattern: str) -> None:
    grade = {"type": "integer", "minimum": 0, "maximum": 5}
    compiled = Compiled(
        {
            "type": "object",
            "properties": {"grade": grade, "level": True},
            "required": ["grade"],
            "patternProperties": {pattern: {"type": "integer"}},
            "additionalProperties": False,
        }
    )
    chance = random.Random(1)
    for _ in range(30):
        compiled.walked(chance)  # asserts that something can follow
    assert compiled.takes('{"grade":3}') and not compiled.takes('{"grade":6}')


@pytest.mark.parametrize("names", [{"patternProperties": {"^(?!a)": False}}, {"propertyNames": {"pattern": "^a"}}])
def test_a_pattern_limits_no_declared_name_that_it_does_not_match(names: dict[str, Any]) -> None:
    declared = {"a": {"type": "string"}}
    compiled = Compiled({"type": "object", "properties": declared, "additionalProperties": {"type": "null"}, **names})
    assert compiled.takes('{"a":"x"}') and compiled.takes('{"a":"x","ab":null}') and not compiled.takes('{"b":null}')


def test_a_declared_name_is_not_spelled_otherwise() -> None:
    compiled = Compiled({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert compiled.takes('{"a":1,"b":"x"}') and not compiled.takes('{"\\u0061":"x"}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False},
        {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "number"}}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
        {"type": "object", "minProperties": 1, "properties": {"a": {}, "b": {}}, "additionalProperties": False},
        {"not": {"type": "string"}},
        {"type": "string", "not": {"enum": ["", "x"]}},
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "object", "dependencies": {"a": ["b"], "b": {"required": ["c"]}}},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"allOf": [{"properties": {"a": True}}, {"properties": {"b": True}}], "unevaluatedProperties": False},
        {"type": "string", "format": "uuid"},
    ],
)
def test_what_masks_can_say_is_not_checked_at_the_end(schema: Any) -> None:
    assert lower(schema).check is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"a": {"minLength": "x"}}}, "minLength 'x' at #/properties/a/minLength"),
        ({"properties": {"a/b": {"type": "dict"}}}, "type 'dict' at #/properties/a~1b/type"),
        ({"items": {"$ref": "#/$defs/none"}}, "#/$defs/none"),
        ({"allOf": [{"$ref": "other.json"}]}, "not fetched"),
        ({"properties": {"a": 3}}, "#/properties/a"),
        ({"anyOf": {"type": "string"}}, "anyOf"),
        ({"required": "a"}, "required"),
        ({"enum": "a"}, "enum"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"enum": [float("inf")]}, "a value that JSON cannot write"),
        (3, "no schema"),
    ],
)
def test_what_makes_no_sense_is_refused_by_keyword_and_place(schema: Any, said: str) -> None:
    with pytest.raises(GrammarError, match=r"^(has|is|refers|holds) ") as refusal:
        lower(schema)
    assert said in str(refusal.value)


_WORDS = (
    *(
        "type",
        "properties",
        "required",
        "items",
        "prefixItems",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
    ),
    *("then", "else", "$ref", "$defs", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$schema"),
    *("minLength", "maxItems", "pattern", "format", "minimum", "exclusiveMaximum", "multipleOf", "dependencies"),
    *("dependentRequired", "patternProperties", "propertyNames", "contains", "minContains", "uniqueItems", "a"),
    *("unevaluatedProperties", "minProperties", "additionalProperties"),
)
_JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 2.5, 1e300, 10**30])
    | st.sampled_from(
        ["string", "object", "number", "#", "#/$defs/a", "http://[", "", "^a$", "(", "[a", "\ud800", r"\c"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4),
    max_leaves=20,
)


@examples(300)
@given(schema=st.dictionaries(st.sampled_from(_WORDS), _JUNK, max_size=5))
def test_whatever_a_schema_says_is_a_grammar_or_a_sentence(schema: dict[str, Any]) -> None:
    try:
        Compiled(schema)
    except GrammarError as error:
        assert len(str(error)) > 10


def test_depth_and_size_come_to_a_sentence() -> None:
    deep: Any = {}
    for _ in range(150):
        deep = {"type": "array", "items": deep}
    assert json.loads(lower(deep).text)["items"]
    for _ in range(500):
        deep = {"not": {"anyOf": [deep]}}
    with pytest.raises(GrammarError, match="deep"):
        lower(deep)
    chain = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(3000)} | {"a3000": {"type": "string"}}
    assert lower({"$ref": "#/$defs/a0", "$defs": chain}).check is None
    names = {f"p{n}": {"type": "string", "description": "x"} for n in range(3000)}
    assert len(json.loads(lower({"properties": names}).text)["properties"]) == 3000


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf", "allOf", "minProperties", "unevaluatedProperties", "if"])
def test_what_refers_to_itself_in_many_ways_is_read_in_few_steps(keyword: str) -> None:
    """Each way would double the work of the one before it."""
    names = [f"p{n}" for n in range(20)]
    node: dict[str, Any] = {"type": "object", "required": names[:10], "properties": {n: {"$ref": "#"} for n in names}}
    many = [{"$ref": "#"}, {"type": "object", "properties": {"p1": {"$ref": "#"}}, "required": ["p1"]}] * 10
    more: dict[str, dict[str, Any]] = {
        "minProperties": {"minProperties": 11},
        "unevaluatedProperties": {"unevaluatedProperties": False, "anyOf": many},
        "if": {"if": {"required": ["p11"]}, "then": {"allOf": many[1:2]}},
    }
    lowered = lower({**node, **more.get(keyword, {keyword: many})})
    assert len(lowered.text) < 100_000
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(6):
        nested = {"minProperties": 1, "type": "object", "properties": {"a": nested, "b": {}, "c": {}, "d": {}}}
    assert len(lower(nested).text) < 10_000


@pytest.mark.parametrize(
    "bounds", [{"minimum": 10**400, "maximum": 1.5}, {"multipleOf": 10**400}, {"minimum": 1e-320, "maximum": 10**400}]
)
def test_whole_numbers_that_no_float_holds_are_bounds_like_others(bounds: dict[str, Any]) -> None:
    assert lower({"type": "number", **bounds}).check is not None
