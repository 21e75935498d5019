"""Every format's marks as special tokens, as added tokens that are text, and as text alone: outputs are drawn from the
masks of forced, named and strict calls, decoded as an answer is, and parsed in one piece and token by token."""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import chain, islice
from typing import Literal

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.parser_choice import ParserChoice, ParserNames, Tool, ToolChoice
from inflight.frontend.parsers.registry import TOOL_FORMATS
from inflight.frontend.prompts import PromptEncoder
from inflight.server.parsers import parsers_of, shown_token_ids
from inflight.text import ChatTemplate, TextStream, Tokenizer
from tests.frontend.parsers.examples import CALLS, TOOLS, parsed

pytest.importorskip("llguidance")
import llguidance.numpy

from inflight.execution.grammars.compile_worker import compiled
from inflight.execution.grammars.grammar_source import grammar_source
from inflight.execution.grammars.vocabulary import Vocabulary

Kind = Literal["special", "plain", "text"]
STRICT = tuple(Tool(tool.name, tool.parameters, strict=True) for tool in TOOLS)
SCHEMAS = {tool.name: json.loads(tool.parameters) for tool in TOOLS}
CHOICES = {
    "required": ToolChoice("required"),
    "named": ToolChoice("named", ("get_weather",), parallel=False),
    "strict": ToolChoice("auto"),
}
_END = "<|end_of_answer|>"
_ENDS = ("\n</parameter>", "</parameter>", "</function>", "</invoke>", '"', "}", "'", ")", "]")


@cache
def _words() -> str:
    """A tokenizer that knows the words of calls, and no mark."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CALLS.values(), trainer)
    return backend.to_str()


class Model:
    """A model whose answers are in one format, as a server knows it."""

    def __init__(self, name: str, kind: Kind) -> None:
        backend = Backend.from_str(_words())
        backend.add_special_tokens([_END])
        marks = list(TOOL_FORMATS[name].marks)
        {"special": backend.add_special_tokens, "plain": backend.add_tokens, "text": len}[kind](marks)
        self.tokenizer = Tokenizer(backend)
        parsers = parsers_of(
            PromptEncoder(self.tokenizer, ChatTemplate("{{ tools }}"), 0), self.tokenizer, ParserNames(name, "none")
        )
        assert parsers is not None
        self.parsers: ParserChoice = parsers
        self.name, self.kind = name, kind
        self.end = self.tokenizer.encode(_END)[0]
        known = self.tokenizer.for_grammars()
        self.vocabulary = Vocabulary(known.as_json, known.count, known.count, (self.end,), known.plain, known.special)
        self.view = self.vocabulary.for_llguidance()

    def drawn(self, grammar: Grammar, chance: random.Random, begin: str = "", most: int = 250) -> list[int] | None:
        """An output, without its end; None where none comes within so many tokens."""
        matcher, output = (
            compiled(self.view, grammar_source(grammar, self.vocabulary).text),
            self.tokenizer.encode(begin),
        )
        assert matcher.consume_tokens(output), begin
        bits, text = llguidance.numpy.allocate_token_bitmask(1, self.view.vocab_size), begin
        while len(output) < most:
            llguidance.numpy.fill_next_token_bitmask(matcher, bits, 0)
            assert not matcher.get_error(), matcher.get_error()
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
            if self.end in allowed and (len(allowed) == 1 or chance.random() < 0.5):
                return output
            others = [one for one in allowed if one != self.end]
            likely = self._closing(text[-20:], set(others)) if chance.random() < 0.8 else []
            output.append(chance.choice(likely or others))
            assert matcher.consume_token(output[-1])
            text += self.tokenizer.token_bytes(output[-1]).decode(errors="replace")
        return None

    def _closing(self, text: str, allowed: set[int]) -> list[int]:
        """Tokens that begin or continue what ends a value, as models write it and chance would not."""
        found: dict[int, list[int]] = {}  # by how much of the mark there is
        for mark in (*TOOL_FORMATS[self.name].marks, *_ENDS):
            known = next(length for length in range(len(mark) - 1, -1, -1) if text.endswith(mark[:length]))
            pieces = (mark[known:end] for end in range(len(mark), known, -1))
            token_id = next((one for piece in pieces if (one := self.tokenizer.token_to_id(piece)) in allowed), None)
            if token_id is not None:
                found.setdefault(known, []).append(token_id)
        return found[max(found)] if found else []

    def texts(self, output: list[int]) -> list[str]:
        """Return the text that each token adds to the answer."""
        stream = TextStream(self.tokenizer, shown_token_ids=shown_token_ids(self.parsers, self.tokenizer))
        return [*(stream.push((token_id,)) for token_id in output), stream.finish()]

    def calls(self, output: list[int]) -> list[tuple[str, str]]:
        pieces, names = self.texts(output), ParserNames(self.name)
        whole = parsed(["".join(pieces)], names, STRICT)
        assert parsed(pieces, names, STRICT) == whole, "an answer is the same in one piece and in many"
        return whole[2]


@pytest.fixture(scope="module", params=["special", "plain", "text"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_calls_are_valid_whatever_tokens_the_marks_are(name: str, kind: Kind) -> None:
    model = Model(name, kind)
    for mode, choice in CHOICES.items():
        grammar = model.parsers.grammar_of_calls(STRICT, choice, None)
        assert grammar is not None
        begin = _opening(name) if mode == "strict" else ""
        outputs = filter(None, (model.drawn(grammar, random.Random(seed), begin) for seed in range(20)))
        calls = [model.calls(output) for output in islice(outputs, 2)]
        assert any(calls), f"{mode}: no call was drawn to its end"
        assert mode == "strict" or all(calls)
        for called, arguments in chain.from_iterable(calls):
            jsonschema.validate(json.loads(arguments), SCHEMAS[called])
            assert mode != "named" or called == "get_weather"


def _opening(name: str) -> str:
    """Return the beginning of a call."""
    others = {
        "llama3_json": '{"name"',
        "llama4_pythonic": "<|python_start|>",
        "openai": "<|channel|>commentary to=functions.",
    }
    return others.get(name) or TOOL_FORMATS[name].in_calls[0]


@pytest.mark.parametrize("name", CALLS)
def test_a_model_that_writes_calls_by_itself_is_read_whatever_tokens_the_marks_are(name: str, kind: Kind) -> None:
    model = Model(name, kind)
    output = model.tokenizer.encode(CALLS[name])
    marks = [mark for mark in TOOL_FORMATS[name].marks if mark in CALLS[name]]
    assert kind == "text" or all(model.tokenizer.token_to_id(mark) in output for mark in marks)
    assert model.calls(output) == parsed([CALLS[name]], ParserNames(name), STRICT)[2] != []


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if name not in ("openai", "llama3_json")])
def test_a_strict_call_cannot_begin_at_a_mark_that_is_spelled(name: str) -> None:
    """A mark that is text too is no text in front of a call: neither its token there, nor smaller ones."""
    model, trigger = Model(name, "plain"), _opening(name)
    grammar = model.parsers.grammar_of_calls(STRICT, CHOICES["strict"], None)
    assert grammar is not None
    spelled = [model.tokenizer.encode(character)[0] for character in f"a{trigger}"]
    matcher = compiled(model.view, grammar_source(grammar, model.vocabulary).text)
    assert matcher.validate_tokens(spelled) < len(spelled)
