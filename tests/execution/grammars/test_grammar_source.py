"""Schemas within Lark grammars are followed as schemas alone are."""

from __future__ import annotations

import json

import pytest

from inflight.execution.grammars.compiling import GrammarError
from inflight.execution.grammars.grammar_source import with_lowered_schemas

UNIQUE = json.dumps({"type": "array", "uniqueItems": True})


def test_a_schema_that_masks_follow_stays_where_it_is() -> None:
    lark, checks = with_lowered_schemas('start: "a" %json {"type": "string", "format": "path"} "b"', False)
    assert checks == {} and "path" not in lark
    assert lark.startswith('start: "a" %json {"type": "string"') and lark.endswith(' "b"')


def test_others_are_captured_once_each_under_a_name_of_their_own() -> None:
    lark, checks = with_lowered_schemas(f"start: x %json {UNIQUE} | y %json {UNIQUE}\nx: checked_json_0", False)
    (name,) = checks
    assert name != "checked_json_0" and lark.startswith(f"start: x {name} | y {name}\n")
    assert lark.count("%json") == 1 and f'{name}[capture="{name}"]: %json' in lark
    assert json.loads(checks[name]) == json.loads(UNIQUE)


def test_schemas_that_are_lowered_alike_are_checked_each_as_it_is() -> None:
    patterns = [json.dumps({"type": "string", "pattern": f"^(?!{one}).*$"}) for one in "xy"]
    lark, checks = with_lowered_schemas("start: " + " ".join(f"%json {one}" for one in patterns), False)
    first, second = lark.split("\n")[0].split()[1:]
    assert [checks[first], checks[second]] == patterns


def test_texts_and_patterns_that_look_like_schemas_are_left_alone() -> None:
    lark = 'start: "%json {" /%json \\/ {/ T // %json {\nT: "a\\"%json"'
    assert with_lowered_schemas(lark, False) == (lark, {})


@pytest.mark.parametrize(
    ("lark", "said"),
    [
        ("start: %json {", "not JSON"),
        ('start: %json {"type": "dict"}', "type 'dict' at #/type"),
        (f"start: %lark {{ start: %json {UNIQUE} }}", "within %lark"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(lark: str, said: str) -> None:
    with pytest.raises(GrammarError, match=r"^has ") as refusal:
        with_lowered_schemas(lark, False)
    assert said in str(refusal.value)
