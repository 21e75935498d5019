"""Examples of what models write in each format, with the parsed results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from inflight.frontend.parsers.parser_choice import ParserNames, Tool
from inflight.frontend.parsers.registry import ChosenParsers

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "metric": {"type": ["boolean", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}
TOOLS = (Tool("get_weather", json.dumps(SCHEMA)), Tool("now", '{"type": "object", "properties": {}}'))
ARGUMENTS = {"city": 'Paris "<tool_call>"', "days": 3, "metric": True, "tags": ["a", "b]"]}
_JSON = json.dumps(ARGUMENTS)

# The same two calls, with content in front of them where the format has a mark.
CALLS = {
    "hermes": f'Let me look.\n<tool_call>\n{{"name": "get_weather", "arguments": {_JSON}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "Let me look.\n<tool_call>\n<function=get_weather>\n"
    '<parameter=city>\nParis "<tool_call>"\n</parameter>\n<parameter=days>\n3\n</parameter>\n'
    '<parameter=metric>\nTrue\n</parameter>\n<parameter=tags>\n["a", "b]"]\n</parameter>\n</function>\n</tool_call>\n'
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "seed_oss": "Let me look.\n<seed:tool_call>\n<function=get_weather>\n"
    '<parameter=city>Paris "<tool_call>"</parameter>\n<parameter=days>3</parameter>\n'
    '<parameter=metric>true</parameter>\n<parameter=tags>["a", "b]"]</parameter>\n</function>\n</seed:tool_call>\n'
    "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    "minimax_m2": 'Let me look.\n<minimax:tool_call>\n<invoke name="get_weather">\n'
    '<parameter name="city">Paris "<tool_call>"</parameter>\n<parameter name="days">3</parameter>\n'
    '<parameter name="metric">true</parameter>\n<parameter name="tags">["a", "b]"]</parameter>\n</invoke>\n'
    '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "glm45": "Let me look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
    '<arg_value>Paris "<tool_call>"</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n'
    "<arg_key>metric</arg_key>\n<arg_value>true</arg_value>\n<arg_key>tags</arg_key>\n"
    '<arg_value>["a", "b]"]</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>',
    "mistral": f"Let me look.[TOOL_CALLS]get_weather[ARGS]{_JSON}[TOOL_CALLS]now[ARGS]{{}}",
    "mistral_list": f'Let me look.[TOOL_CALLS] [{{"name": "get_weather", "arguments": {_JSON}}}, '
    '{"arguments": {}, "name": "now"}]',
    "llama3_json": f'Let me look. {{"name": "get_weather", "parameters": {_JSON}}}; '
    '{"name": "now", "parameters": {}}',
    "phi4_mini_json": f'Let me look.<|tool_call|>[{{"name": "get_weather", "arguments": {_JSON}}}, '
    '{"name": "now", "arguments": {}}]<|/tool_call|>',
    "llama4_pythonic": "Let me look.<|python_start|>[get_weather(city='Paris \"<tool_call>\"', days=3, metric=True, "
    "tags=['a', 'b]']), now()]<|python_end|>",
    "deepseek_v3": "Let me look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    f"```json\n{_JSON}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
    "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": f"Let me look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{_JSON}"
    "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "gemma4": 'Let me look.<|tool_call>call:get_weather{city:<|"|>Paris "<tool_call>"<|"|>,days:3,metric:true,'
    'tags:[<|"|>a<|"|>,<|"|>b]<|"|>]}<tool_call|><|tool_call>call:now{}<tool_call|>',
    "functiongemma": 'Let me look.<start_function_call>call:get_weather{city:<escape>Paris "<tool_call>"<escape>,'
    "days:3,metric:true,tags:[<escape>a<escape>,<escape>b]<escape>]}<end_function_call>"
    "<start_function_call>call:now{}<end_function_call>",
    "generic": f'Let me look. {{"tool_calls": [{{"name": "get_weather", "arguments": {_JSON}}}, '
    '{"name": "now", "arguments": {}}]}',
    "openai": "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>commentary "
    f"to=functions.get_weather <|constrain|>json<|message|>{_JSON}<|call|><|start|>assistant to=functions.now"
    "<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
}


def deltas_of(
    pieces: Iterable[str],
    names: ParserNames,
    tools: Sequence[Tool] = TOOLS,
    in_reasoning: bool = False,
) -> list[AnswerDelta]:
    """In order, with neighbouring deltas of one kind joined, and those of one call."""
    parser = ChosenParsers(names).parser(tools, in_reasoning)
    deltas: list[AnswerDelta] = [delta for piece in pieces for delta in parser.push(piece)]
    joined: list[AnswerDelta] = []
    calls = 0
    for one in [*deltas, *parser.finish()]:
        last = joined[-1] if joined else None
        if isinstance(one, ToolCallDelta) and one.index < calls:
            assert isinstance(last, ToolCallDelta) and one.index == last.index and one.name is None
            joined[-1] = ToolCallDelta(one.index, last.name, last.arguments + one.arguments, last.call_id)
        elif isinstance(one, ToolCallDelta):
            assert one.index == calls and one.name, "the first delta of a call has its name"
            joined.append(one)
            calls += 1
        elif isinstance(one, ContentDelta) and isinstance(last, ContentDelta):
            joined[-1] = ContentDelta(last.text + one.text)
        elif isinstance(one, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined[-1] = ReasoningDelta(last.text + one.text)
        else:
            joined.append(one)
    return joined


def parsed(
    pieces: Iterable[str],
    names: ParserNames,
    tools: Sequence[Tool] = TOOLS,
    in_reasoning: bool = False,
) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content, and the calls' names and arguments, each joined without its place."""
    deltas = deltas_of(pieces, names, tools, in_reasoning)
    return (
        "".join([one.text for one in deltas if isinstance(one, ReasoningDelta)]),
        "".join([one.text for one in deltas if isinstance(one, ContentDelta)]),
        [(one.name or "", one.arguments) for one in deltas if isinstance(one, ToolCallDelta)],
    )
