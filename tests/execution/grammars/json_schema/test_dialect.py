"""Old and new drafts, references and annotations, in one dialect."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.execution.grammars.compiling import GrammarError
from inflight.execution.grammars.json_schema.dialect import in_one_dialect

DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "read"),
    [
        ({"title": "x", "default": 1, "type": ["string"], "x-own": []}, {"type": "string"}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
        ({"items": [True], "additionalItems": False}, {"prefixItems": [True], "items": False}),
        ({"items": {}, "additionalItems": False}, {"items": {}}),
        ({"dependencies": {"a": ["b"]}}, {"dependentRequired": {"a": ["b"]}}),
        ({"format": "path"}, {}),
        ({"format": "date"}, {"format": "date"}),
        ({"required": True, "type": "any"}, {}),
        ({"then": {"type": "string"}, "maxContains": 1}, {}),
        ({"$schema": DRAFT4, "const": 1, "if": {}, "type": "null"}, {"type": "null"}),
        ({"$schema": DRAFT7, "const": 1, "dependentRequired": {}}, {"const": 1}),
        (False, {"not": {}}),
    ],
)
def test_a_keyword_counts_as_its_draft_has_it(schema: Any, read: Any) -> None:
    assert in_one_dialect(schema) == read


def test_what_stands_beside_a_reference_counts_from_draft_2019_on() -> None:
    schema = {"definitions": {"a": {"type": "string"}}, "$ref": "#/definitions/a", "maxLength": 3}
    assert "maxLength" not in in_one_dialect({"$schema": DRAFT7, **schema})
    assert in_one_dialect(schema) == {"$ref": "#/$defs/d0", "maxLength": 3, "$defs": {"d0": {"type": "string"}}}


@pytest.mark.parametrize(
    ("reference", "more"),
    [
        ("#/$defs/a~1b%20c", {}),
        ("#/properties/list/items/0", {}),
        ("#here", {}),
        ("https://example.org/root.json#/$defs/a~1b%20c", {"$id": "https://example.org/root.json"}),
        ("part.json", {"$id": "https://example.org/root.json"}),
    ],
)
def test_a_reference_finds_its_part_by_pointer_anchor_or_address(reference: str, more: dict[str, Any]) -> None:
    document = {
        **more,
        "properties": {"x": {"$ref": reference}, "list": {"items": [{"type": "null"}]}},
        "$defs": {
            "a/b c": {"type": "null"},
            "anchored": {"$anchor": "here", "type": "null"},
            "addressed": {"$id": "part.json", "type": "null"},
        },
    }
    read = in_one_dialect(document)
    assert read["$defs"][read["properties"]["x"]["$ref"].rpartition("/")[2]] == {"type": "null"}


def test_a_reference_to_the_whole_is_one_definition() -> None:
    read = in_one_dialect({"properties": {"next": {"$ref": "#"}, "other": {"$ref": "#"}}})
    assert len(read["$defs"]) == 1 and read["properties"]["next"] == read["properties"]["other"]


@pytest.mark.parametrize(
    "keyword", ["minLength", "maxItems", "minContains", "minimum", "exclusiveMaximum", "multipleOf"]
)
def test_numbers_beyond_all_floats_are_refused(keyword: str) -> None:
    with pytest.raises(GrammarError, match=f"has {keyword} 'inf' at #/{keyword}; give a"):
        in_one_dialect({keyword: float("inf"), "contains": True})


def test_an_address_that_is_none_names_its_part_all_the_same() -> None:
    document = {"$defs": {"a": {"$id": "http://[x", "type": "null"}}, "$ref": "http://[x"}
    assert in_one_dialect(document) == {"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "null"}}}
