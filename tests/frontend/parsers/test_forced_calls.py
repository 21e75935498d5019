"""Grammars of forced calls, asked of llguidance: what they let through is what the format's parser reads as calls whose
arguments are valid."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.parser_choice import ParserNames, Tool, ToolChoice
from inflight.frontend.parsers.registry import TOOL_FORMATS, ChosenParsers, ParserError
from tests.frontend.parsers.examples import ARGUMENTS, CALLS, TOOLS, parsed

pytest.importorskip("llguidance")
from tests.frontend.parsers.byte_grammar import ByteGrammar, special_ids

STRICT = tuple(Tool(tool.name, tool.parameters, strict=True) for tool in TOOLS)
_SPECIAL = {"<tool_call>": 257, "</tool_call>": 258}
_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
_PLAIN_TEXT = ("qwen3_coder", "qwen3_xml", "seed_oss", "minimax_m2", "glm45")  # strings are written without quotes
_LITERALS = ("gemma4", "functiongemma", "llama4_pythonic")
_OPENING = "<|channel|>final<|message|>"
# Marks that random texts would never spell.
_ENDS = ("</parameter>", "\n</parameter>\n", "</arg_value>", "<escape>", '<|"|>')

# What a schema may say of each kind of value.
RICH = {
    "type": "object",
    "$defs": {
        "unit": {"enum": ["celsius", "kelvin", "3"], "type": "string"},
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number", "minimum": -90, "maximum": 90}, "name": {"type": "string"}},
            "required": ["lat"],
            "additionalProperties": False,
        },
    },
    "properties": {
        "unit": {"$ref": "#/$defs/unit", "description": "of the answer"},
        "place": {"$ref": "#/$defs/place"},
        "short": {"type": "string", "minLength": 2, "maxLength": 5},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$|^x"},
        "part": {"type": "string", "pattern": "a[bc]"},
        "day": {"type": "string", "format": "date"},
        "maybe": {"anyOf": [{"type": "string", "maxLength": 6}, {"type": "integer", "minimum": 5}, {"type": "null"}]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        "pair": {
            "type": "array",
            "prefixItems": [{"type": "string"}, {"type": "integer"}],
            "minItems": 2,
            "maxItems": 2,
        },
        "either": {"enum": ["on", 1, None, True]},
        "level": {"type": "integer", "exclusiveMinimum": 0, "maximum": 40},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 2},
        "anything": {},
    },
    "required": ["unit", "short", "maybe"],
}
RICH_TOOL = Tool("look", json.dumps(RICH), strict=True)


def _grammar(
    name: str,
    choice: ToolChoice,
    content: Grammar | None = None,
    special: dict[str, int] | None = None,
    tools: tuple[Tool, ...] = STRICT,
) -> ByteGrammar:
    grammar = ChosenParsers(ParserNames(name), special).grammar_of_calls(tools, choice, content)
    assert grammar is not None
    return ByteGrammar(grammar, [*TOOL_FORMATS[name].marks, *_ENDS], list(special or ()))


def _assert_valid(name: str, text: str, tools: tuple[Tool, ...]) -> int:
    """How many calls it has."""
    _, _, calls = parsed([text], ParserNames(name), tools)
    schemas = {tool.name: json.loads(tool.parameters) for tool in tools}
    for called, arguments in calls:
        jsonschema.Draft202012Validator(
            schemas[called], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        ).validate(json.loads(arguments))
    return len(calls)


@pytest.mark.parametrize("with_special", [False, True])
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_whatever_is_drawn_under_required_is_calls_with_valid_arguments(name: str, with_special: bool) -> None:
    special = dict(special_ids(TOOL_FORMATS[name].marks)) if with_special else {}
    whole = 0
    for tools in (STRICT, (RICH_TOOL,)):
        grammar = _grammar(name, ToolChoice("required"), special=special, tools=tools)
        for seed in range(12):
            text = grammar.drawn(random.Random(seed))
            if text is not None:
                whole += 1
                assert _assert_valid(name, text, tools) >= 1
                assert parsed([text], ParserNames(name), tools)[1] == "" or name == "openai"  # a preamble
    assert whole >= 3


@pytest.mark.parametrize("with_special", [False, True])
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_whatever_is_drawn_under_strict_has_no_call_that_is_not_valid(name: str, with_special: bool) -> None:
    special = dict(special_ids(TOOL_FORMATS[name].marks)) if with_special else {}
    grammar = _grammar(name, ToolChoice("auto"), special=special)
    texts = [grammar.drawn(random.Random(seed), ends=0.03) for seed in range(20)]
    whole = [text for text in texts if text is not None]
    assert whole
    for text in whole:
        _assert_valid(name, text, STRICT)


def _written(name: str) -> str:
    """As the format's models write it, and its forced calls: the example, but where it shows what parsers bear."""
    if name == "generic":
        return CALLS[name].removeprefix("Let me look. ")
    if name == "mistral_list":
        calls = [{"name": "get_weather", "arguments": ARGUMENTS}, {"name": "now", "arguments": {}}]
        return f"[TOOL_CALLS]{json.dumps(calls)}"
    if name == "openai":
        return (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Let me look."
            "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
            f"{json.dumps(ARGUMENTS)}"
        )
    return CALLS["qwen3_coder" if name == "qwen3_xml" else name]


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [
        ("TRUE", False),
        *[("abc", True), ("7", True), ("null", True), ("None", True), ("", True), ("a -7", True), ("'7'", True)],
        *[
            ("-7", False),
            ("3", False),
            ("{}", False),
            (" a", False),
            ("a\n", False),
            ("TRUE", False),
            ("seven s", False),
        ],
    ],
)
@pytest.mark.parametrize("name", _PLAIN_TEXT)
def test_a_text_that_would_be_read_as_a_number_is_none(name: str, value: str, is_allowed: bool) -> None:
    """The property `maybe` is a text of at most six characters, an integer of at least five, or null."""
    schema = {"type": "object", "properties": {"maybe": RICH["properties"]["maybe"]}}  # type: ignore[index]
    tools = (Tool("look", json.dumps(schema), strict=True),)
    text = _example_call(name, value)
    assert _grammar(name, ToolChoice("required"), tools=tools).accepts_text(text) == is_allowed
    if is_allowed:
        assert _assert_valid(name, text, tools) == 1


def _example_call(name: str, value: str) -> str:
    """Return a call of the tool `look` with one argument, made from the format's example."""
    example = CALLS["qwen3_coder" if name == "qwen3_xml" else name].removeprefix("Let me look.\n")
    begin, end = example.index('Paris "<tool_call>"'), example.index('Paris "<tool_call>"') + len('Paris "<tool_call>"')
    edge = "\n" if example[end] == "\n" else ""
    mark = "</arg_value>" if name == "glm45" else "</parameter>"
    behind = {
        "minimax_m2": "\n</invoke>\n</minimax:tool_call>",
        "seed_oss": "\n</function>\n</seed:tool_call>",
        "glm45": "\n</tool_call>",
    }.get(name, "\n</function>\n</tool_call>")
    head = example[:begin].replace("get_weather", "look").replace("city", "maybe")
    return head + value + edge + mark + behind


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", '{ "name": "get_weather", "parameters": {"city": 3}}'),
        ("llama3_json", '{"name": "now", "parameters": {}}; {"type": "x", "name": "get_weather", "parameters": {}}'),
        ("llama3_json", 'See <|python_tag|>{ "name": "get_weather", "parameters": {}}'),
        ("llama4_pythonic", " [get_weather(city=3)]"),
        ("llama4_pythonic", "See <|python_start|>[get_weather()]"),
        ("phi4_mini_json", 'functools[{"name": "get_weather", "arguments": {}}]'),
        ("qwen3_coder", "See <function=get_weather>\n</function>"),
        ("minimax_m2", 'See <invoke name="get_weather">\n</invoke>'),
        ("deepseek_v31", "See <｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        ("openai", "<|channel|>commentary<|message|>a<|channel|>commentary to=functions.get_weather<|message|>{}"),
    ],
)
def test_another_spelling_does_not_evade_the_schema(name: str, text: str) -> None:
    assert parsed([text], ParserNames(name))[2], "the parser reads a call"
    assert not _grammar(name, ToolChoice("auto")).accepts_text(text)


def _calls_alone(text: str) -> str:
    calls = text.removeprefix("Let me look.").removeprefix("<|python_start|>").removesuffix("<|python_end|>")
    return calls.strip(" ")


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_the_formats_own_example_is_accepted_and_one_that_is_not_valid_is_not(name: str) -> None:
    text, strict = _written(name), _grammar(name, ToolChoice("auto"))
    assert strict.accepts_text(text)
    wrong = text.replace('"days": 3', '"days": "x"').replace("days=3", "days='x'").replace("days:3", "days:x")
    wrong = wrong.replace(">3<", ">x<").replace(">\n3\n<", ">\nx\n<")
    assert wrong != text and not strict.accepts_text(wrong)
    plain = {"openai": f"{_OPENING}Hello.\n", "generic": '{"response": "Hello."}'}.get(name, "Hello.\n")
    assert strict.accepts_text(plain)
    required = _grammar(name, ToolChoice("required"))
    assert required.accepts_text(_calls_alone(text)) and not required.accepts_text(plain)
    special = dict(special_ids(TOOL_FORMATS[name].marks))
    without_marks = text.replace(' "<tool_call>"', "").replace(' \\"<tool_call>\\"', "")
    assert _grammar(name, ToolChoice("auto"), special=special).accepts_text(without_marks)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_named_call_is_of_that_tool_and_one(name: str) -> None:
    grammar = _grammar(name, ToolChoice("named", ("now",), parallel=False))
    for seed in range(8):
        text = grammar.drawn(random.Random(seed))
        assert text is None or [called for called, _ in parsed([text], ParserNames(name))[2]] == ["now"]


def test_several_calls_may_be_required() -> None:
    assert _grammar("hermes", ToolChoice("required")).accepts_text(f"{_CALL}\n{_CALL}")
    assert not _grammar("hermes", ToolChoice("required", parallel=False)).accepts_text(f"{_CALL}\n{_CALL}")


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if name != "openai"])  # which calls one at a time
def test_a_call_with_empty_arguments_is_followed_by_another(name: str) -> None:
    tool = Tool("now", '{"type": "object", "properties": {}, "additionalProperties": false}', strict=True)
    grammar, several = _grammar(name, ToolChoice("required"), tools=(tool,)), 0
    for seed in range(20):
        text = grammar.drawn(random.Random(seed), ends=0.2) or ""
        for pieces in ([text], list(text)):
            _, _, calls = parsed(pieces, ParserNames(name), (tool,))
            several += len(calls) > 1
            assert all(called == "now" and json.loads(arguments) == {} for called, arguments in calls)
    assert several


def test_marks_that_are_special_tokens_are_forced_as_such() -> None:
    inside = _CALL.removeprefix("<tool_call>").removesuffix("</tool_call>").encode()
    for mode in ("required", "auto"):
        grammar = _grammar("hermes", ToolChoice(mode), special=_SPECIAL)  # type: ignore[arg-type]
        assert grammar.accepts([257, *inside, 258])
        assert grammar.accepts([257, *inside, 258, 10, 257, *inside, 258])
        assert not grammar.accepts([257, *b"Hello", 258])
        assert not grammar.accepts([*b"<tool_call>", *inside, 258])  # spelled, but no token


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if name != "generic"])  # see test_generic
def test_an_answer_with_a_schema_may_call_instead(name: str) -> None:
    schema = Grammar("json_schema", json.dumps({"type": "array", "items": {"type": "integer"}}))
    grammar = _grammar(name, ToolChoice("auto"), schema)
    opening = _OPENING if name == "openai" else ""
    assert grammar.accepts_text(opening + "[1, 2]") and not grammar.accepts_text(opening + "Hello.")
    assert grammar.accepts_text(_calls_alone(_written(name)))


@pytest.mark.parametrize("name", [*_PLAIN_TEXT, *_LITERALS])
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"a": {"not": {"type": "string"}}}}, "'not'"),
        ({"properties": {"a": {"type": "string", "format": "iri"}}}, "'iri'"),
        ({"properties": {"a": {"type": "string", "pattern": "a(^b)"}}}, "pattern"),
        ({"properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 2}]}}}, "'allOf'"),
        ({"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]}}}, "'oneOf'"),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}}, "$ref"),
        ({"properties": {}, "required": ["b"]}, "'b'"),
        ({"type": "array"}, "object"),
        ({"properties": {"a": {}}, "minProperties": 2}, "'minProperties'"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, "object"),
    ],
)
def test_what_cannot_be_forced_is_refused_by_name(name: str, schema: dict[str, object], said: str) -> None:
    chosen = ChosenParsers(ParserNames(name))
    with pytest.raises(ValueError, match=r"\.$") as refusal:
        chosen.grammar_of_calls((Tool("f", json.dumps(schema)),), ToolChoice("required"), None)
    assert said in str(refusal.value) and "'f'" in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "schema", "said"),
    [
        ("glm45", {"properties": {"a": {"enum": ["</arg_value>"]}}}, "</arg_value>"),
        ("glm45", {"properties": {"a": {"enum": ["\na"]}}}, "\\na"),
        ("qwen3_coder", {"properties": {"a": {"enum": ["1", 1]}}}, "'1'"),
        ("qwen3_coder", {"properties": {" a": {}}}, "' a'"),
        ("gemma4", {"properties": {"a": {"const": '<|"|>'}}}, "cannot be written"),
        ("llama4_pythonic", {"properties": {"a b": {}}}, "'a b'"),
    ],
)
def test_what_a_format_cannot_write_is_refused(name: str, schema: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=r"\.$") as refusal:
        ChosenParsers(ParserNames(name)).grammar_of_calls(
            (Tool("f", json.dumps(schema)),), ToolChoice("required"), None
        )
    assert said in str(refusal.value)


_WORDS = (
    *("type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
    *("$defs", "minLength", "maxItems", "minItems", "pattern", "format", "additionalProperties", "not", "a", "minimum"),
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["string", "object", "#/$defs/a", "a", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "gemma4", "llama4_pythonic", "hermes", "openai"])
@settings(examples(150), deadline=None)
@given(schema=st.dictionaries(st.sampled_from(_WORDS), _ANYTHING, max_size=5))
def test_whatever_a_schema_says_is_a_grammar_or_a_sentence(name: str, schema: dict[str, object]) -> None:
    tool = Tool("f", json.dumps(schema), strict=True)
    answer = ChosenParsers(ParserNames(name)).parser((tool,), in_reasoning=False)
    answer.push(CALLS[name].replace("get_weather", "f").replace("city", "a"))
    try:
        made = ChosenParsers(ParserNames(name)).grammar_of_calls((tool,), ToolChoice("required"), None)
    except ValueError as refusal:
        assert str(refusal).endswith(".")
    else:
        assert made is not None and made.source.startswith("start: ")


@pytest.mark.parametrize("name", [*_PLAIN_TEXT, *_LITERALS])
def test_a_schema_of_any_depth_is_a_grammar_or_a_sentence(name: str) -> None:
    deep = '{"type": "array", "items":' * 3000 + "{}" + "}" * 3000
    tool = Tool("f", '{"properties": {"a": ' + deep + "}}")
    with pytest.raises(ValueError, match=r"'f'.*\.$"):
        ChosenParsers(ParserNames(name)).grammar_of_calls((tool,), ToolChoice("required"), None)


@pytest.mark.parametrize("name", [*_PLAIN_TEXT, *_LITERALS])
def test_a_schema_may_be_a_reference(name: str) -> None:
    """As libraries write it that make schemas of types."""
    place = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
    tools = (Tool("look", json.dumps({"$ref": "#/$defs/place", "$defs": {"place": place}}), strict=True),)
    grammar, whole = _grammar(name, ToolChoice("required"), tools=tools), 0
    for seed in range(6):
        text = grammar.drawn(random.Random(seed))
        whole += 0 if text is None else _assert_valid(name, text, tools)
    assert whole >= 3


@pytest.mark.parametrize(
    ("pattern", "text", "is_allowed"),
    [
        (r"^a\/b/c$", "a/b/c", True),
        (r"^a\/b/c$", "a/b", False),
        ("^(x|y)\n?$", "x\n", True),
        (r"^[/\]^$|]+$", "]^$|/", True),
        ("b|^c", "abc", True),
        ("b|^c", "ac", False),
        (r"^\\/$", "\\/", True),
    ],
)
def test_patterns_mean_in_a_grammar_what_they_mean_in_a_schema(pattern: str, text: str, is_allowed: bool) -> None:
    schema = {"properties": {"maybe": {"type": "string", "pattern": pattern}}}
    assert (re.search(pattern, text) is not None) == is_allowed
    tools = (Tool("look", json.dumps(schema), strict=True),)
    grammar = _grammar("qwen3_coder", ToolChoice("required"), tools=tools)
    assert grammar.accepts_text(_example_call("qwen3_coder", text)) == is_allowed


def test_names_that_a_format_cannot_write_are_refused() -> None:
    with pytest.raises(ValueError, match="'7up'"):
        ChosenParsers(ParserNames("llama4_pythonic")).grammar_of_calls((Tool("7up"),), ToolChoice("required"), None)


@pytest.mark.parametrize("name", [*_PLAIN_TEXT, *_LITERALS])
def test_arguments_of_a_tool_without_a_schema_are_free(name: str) -> None:
    grammar, seen = _grammar(name, ToolChoice("required"), tools=(Tool("f"),)), set()
    for seed in range(20):
        text = grammar.drawn(random.Random(seed))
        if text is not None:
            assert _assert_valid(name, text, (Tool("f"),)) >= 1
            seen.add(parsed([text], ParserNames(name), (Tool("f"),))[2][0][1])
    assert len(seen) > 1


def test_an_answers_form_that_is_no_json_is_refused_beside_tools() -> None:
    with pytest.raises(ParserError, match="tool_choice"):
        _grammar("hermes", ToolChoice("auto"), Grammar("regex", "a+"))


def test_an_answers_schema_that_is_none_is_refused_beside_tools() -> None:
    for name in ("hermes", "openai"):
        with pytest.raises(ValueError, match=r"schema.*\.$"):
            _grammar(name, ToolChoice("auto"), Grammar("json_schema", "{"))


def test_a_plugins_calls_are_refused_in_words() -> None:
    chosen = ChosenParsers(ParserNames("tests.frontend.parsers.test_registry:Shouting"))
    with pytest.raises(ParserError, match="tool_choice"):
        chosen.grammar_of_calls(STRICT, ToolChoice("required"), None)


def test_nothing_is_forced_where_nothing_is_asked() -> None:
    chosen = ChosenParsers(ParserNames("hermes"))
    assert chosen.grammar_of_calls(TOOLS, ToolChoice("auto"), None) is None


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_of_tools_that_are_shown_only_those_that_are_allowed_are_called(name: str) -> None:
    grammar, called = _grammar(name, ToolChoice("auto", ("get_weather",)), tools=TOOLS), set()
    for seed in range(20):
        text = grammar.drawn(random.Random(seed), ends=0.03)
        if text is not None:
            called |= {one for one, _ in parsed([text], ParserNames(name), TOOLS)[2]}
    assert called <= {"get_weather"}
