"""Rows whose texts are checked once they are whole: what is not valid does not end."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from inflight.core.types.sampling import Grammar
from inflight.execution.grammars.compiled_grammars import CompiledGrammars

from .test_grammar_rows import END, SIZE, THINK_END, TOKENIZER, Row
from .vocabularies import vocabulary_of

UNIQUE = Grammar("json_schema", json.dumps({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}))
SECOND = Grammar("json_schema", json.dumps({"type": "integer", "multipleOf": 99_991}))
CALL = Grammar("lark", 'start: "<" %json {"type": "array", "uniqueItems": true} ">"')
TAG = Grammar(
    "structural_tag",
    json.dumps({"structures": [{"begin": "<f>", "schema": {"uniqueItems": True}, "end": "</f>"}], "triggers": ["<f"]}),
)


@pytest.fixture(scope="module")
def compiled() -> Iterator[CompiledGrammars]:
    assert END is not None
    vocabulary = vocabulary_of(TOKENIZER, SIZE, END)
    grammars = CompiledGrammars(lambda: vocabulary)
    yield grammars
    grammars.close()


def tokens(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text))


def test_a_valid_text_ends(compiled: CompiledGrammars) -> None:
    row = Row(compiled, UNIQUE, tokens("[1,2]"))
    assert row.allowed() == [[END]]


@pytest.mark.parametrize(
    ("grammar", "text"), [(UNIQUE, "[1,1]"), (CALL, "<[1,1]"), (TAG, 'x <f>{"a":[1],"b":2}</f> <f>[3,3]')]
)
def test_an_invalid_one_is_a_fault_that_names_keyword_and_place(
    compiled: CompiledGrammars, grammar: Grammar, text: str
) -> None:
    row = Row(compiled, grammar, tokens(text))
    assert row.allowed() == [[]]
    assert "uniqueItems at its root" in (row.fault() or "")


def test_one_that_can_go_on_does(compiled: CompiledGrammars) -> None:
    (allowed,) = Row(compiled, SECOND, tokens("9999")).allowed()
    assert allowed and END not in allowed
    (allowed,) = Row(compiled, SECOND, tokens("99991")).allowed()
    assert allowed and END in allowed


@pytest.mark.parametrize("grammar", [UNIQUE, SECOND])
@pytest.mark.parametrize("behind", [(), THINK_END])
def test_behind_drafts_and_reasoning_masks_are_those_of_the_tokens_drawn(
    compiled: CompiledGrammars, grammar: Grammar, behind: tuple[int, ...]
) -> None:
    grammar = Grammar(grammar.kind, grammar.source, behind)
    for text in ("[1,1]", "[1,2]") if '"array"' in grammar.source else ("99991", "99992"):
        written = tokens(text)
        drafted = Row(compiled, grammar, behind).allowed(*written)
        assert drafted == [
            Row(compiled, grammar, behind + written[:place]).allowed()[0] for place in range(len(written) + 1)
        ]


def test_a_fault_behind_drafts_is_said_when_they_were_drawn(compiled: CompiledGrammars) -> None:
    row = Row(compiled, UNIQUE, tokens("["))
    assert row.allowed(*tokens("1,1]"))[-1] == []
    assert "uniqueItems" in (row.fault() or "")
    assert row.allowed() != [[]]  # something else was drawn


def test_a_schema_that_masks_follow_is_not_checked(compiled: CompiledGrammars) -> None:
    for source in ('{"type":"object","properties":{"a":{"enum":[1,2]}}}', '{"type":"string","format":"path"}'):
        grammar = Grammar("json_schema", source)
        compiled.check(grammar)
        assert compiled.outcome(grammar).checks is None
    compiled.check(UNIQUE)
    assert compiled.outcome(UNIQUE).checks is not None
