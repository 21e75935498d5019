"""Grammars that hold the text of an added token, drawn from as a model's output is."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
from text.builders import byte_level

from inflight.core.types.sampling import Grammar
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.text import Tokenizer

from .vocabularies import vocabulary_of

pytest.importorskip("llguidance")
import llguidance.numpy

SIZE = 512


class Drawing:
    """Outputs by masks. is_special: what <table> and </table> are."""

    def __init__(self, is_special: bool) -> None:
        backend = byte_level()
        (backend.add_special_tokens if is_special else backend.add_tokens)(["<table>", "</table>"])
        self.tokenizer = Tokenizer(backend)
        self.end, self.table = (self.tokenizer.token_to_id(one) for one in ("<|end|>", "<table>"))
        assert self.end is not None
        vocabulary = vocabulary_of(self.tokenizer, SIZE, self.end)
        self.compiled = CompiledGrammars(lambda: vocabulary)

    def drawn(self, grammar: Grammar, chance: random.Random) -> tuple[str, list[int]]:
        self.compiled.check(grammar)
        matcher, output = self.compiled.outcome(grammar).matcher.deep_copy(), list[int]()
        bits = llguidance.numpy.allocate_token_bitmask(1, self.compiled.mask_words * 32)
        while True:
            llguidance.numpy.fill_next_token_bitmask(matcher, bits, 0)
            assert not matcher.get_error(), matcher.get_error()
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
            ends = self.end in allowed and self.table in output
            output.append(self.end if ends else self.table if self.table in allowed else chance.choice(allowed))
            if output[-1] == self.end:
                return self.tokenizer.decode(output[:-1], skip_special_tokens=False), output[:-1]
            assert matcher.consume_token(output[-1])


@pytest.fixture(scope="module", params=[False, True])
def drawing(request: pytest.FixtureRequest) -> Iterator[Drawing]:
    made = Drawing(request.param)
    yield made
    made.compiled.close()


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("choice", '["<table>", "<table>1</table>"]'),
        Grammar("regex", r"(<table>){1,2}<\/table>"),
        Grammar("json_schema", '{"const": "<table>"}'),
        Grammar("json_schema", '{"type": "string", "pattern": "^<table>[ab]$"}'),
        Grammar(
            "json_schema",
            '{"type":"object","properties":{"<table>":{"type":"null"}},"required":["<table>"],'
            '"additionalProperties":false}',
        ),
        Grammar("lark", 'start: "<table>" /a[<]table>/'),
    ],
)
def test_a_grammar_may_hold_the_text_of_an_added_token(drawing: Drawing, grammar: Grammar) -> None:
    """By its id where it is text, else by smaller tokens."""
    for seed in range(3):
        text, token_ids = drawing.drawn(grammar, random.Random(seed))
        assert "<table>" in text
        assert (drawing.table in token_ids) == (drawing.table not in drawing.tokenizer.special_token_ids)
        assert grammar.kind != "choice" or text in json.loads(grammar.source)


def test_a_text_that_only_a_patterns_meaning_holds_has_no_dead_end(drawing: Drawing) -> None:
    assert drawing.drawn(Grammar("regex", "[<]table[>]a"), random.Random(1))[0] == "<table>a"
    assert drawing.drawn(Grammar("regex", "<[|]end[|]>a"), random.Random(1))[0] == "<|end|>a"


@pytest.mark.parametrize("quoted", ['"<|end|>"', '"a" /<table>/'])
def test_a_clients_grammar_names_tokens_whatever_they_are(drawing: Drawing, quoted: str) -> None:
    """Quoted text is no name."""
    text, token_ids = drawing.drawn(Grammar("lark", f"start: <table> {quoted} // <table>\n"), random.Random(1))
    assert token_ids[0] == drawing.table and text.startswith("<table>")
    assert text.removeprefix("<table>") in ("<|end|>", "a<table>")


def test_a_structural_tag_begins_at_a_token_whatever_it_is(drawing: Drawing) -> None:
    tag = {
        "structures": [{"begin": "<table>a", "schema": {"const": 1}, "end": "</table>"}],
        "triggers": ["<table>"],
    }
    text, token_ids = drawing.drawn(Grammar("structural_tag", json.dumps(tag)), random.Random(1))
    assert drawing.table in token_ids and text.count("<table>") == text.count("<table>a1</table>") > 0
