"""Chat templates against transformers, and what is said about messages and templates that do not work."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest

from inflight.text import ChatTemplate, ChatTemplateError, Conversation, TemplateVariableError, TokenizerError

from .builders import byte_level, write_folder

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%Y") %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are helpful.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if loop.first and message.role == "system" %}{%- continue %}{%- endif %}
    {%- if message.role == "assistant" and not message.content %}
        {{- '<|im_start|>assistant' }}
        {%- for tool_call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
            {{- tool_call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {%- set ns.last = loop.index0 %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}
    {% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}
    {% endif %}
{% endfor %}
"""
TINY = """\
{% for m in messages %}{{ m.role }}: {{ m.content }}
{{ '' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
PARTS = """\
{% for message in messages %}{{ message.role }}:
{%- set parts = message['content'] %}
{% for part in parts | selectattr('type', 'equalto', 'text') %}<{{ part.text }}>{% endfor %};{% endfor %}"""
EITHER = """\
{% macro show(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}({{ part.text }})\
{% endfor %}{% endif %}{% endmacro %}{% for message in messages %}{{ show(message.content) }};{% endfor %}"""
TEMPLATES = {"llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL, "tiny": TINY, "parts": PARTS, "either": EITHER}

CONFIG = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": False}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "<Wetter> in München & 東京", "parameters": {"type": "object"}},
    }
]
CALL = {"function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "  What is a batch?  "}],
    "several": [
        {"role": "user", "content": "Was heißt 'batch'? <b>&amp;</b> 😀"},
        {"role": "assistant", "content": "A set of requests.\n\nComputed together."},
        {"role": "user", "content": "{{ bos_token }} {% raise %}"},
    ],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
    "calls": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "18 °C"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
}


# transformers passes content on as it is, so a template is compared on chats whose content it takes.
COMPARED = [
    (template, chat)
    for template in TEMPLATES
    for chat in CHATS
    if template == "either" or (template == "parts") == (chat == "parts")
]


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize(("template", "chat"), COMPARED)
@pytest.mark.parametrize("variables", [{}, {"tools": TOOLS}, {"enable_thinking": False, "date_string": "1 May"}])
def test_renders_as_transformers_does(
    tmp_path: Path, template: str, chat: str, generation: bool, variables: dict[str, Any]
) -> None:
    write_folder(tmp_path, None, {**CONFIG, "chat_template": TEMPLATES[template]})
    ours = ChatTemplate.load(tmp_path)
    theirs = reference()
    theirs.chat_template = TEMPLATES[template]

    def render() -> str:
        others = {name: value for name, value in variables.items() if name != "tools"}
        tools = variables.get("tools")
        return ours.render(Conversation(CHATS[chat], others, tools=tools, add_generation_prompt=generation))

    try:
        expected = theirs.apply_chat_template(
            CHATS[chat], tokenize=False, add_generation_prompt=generation, **variables
        )
    except Exception:
        with pytest.raises(ChatTemplateError):
            render()
    else:
        assert render() == expected


_reference: list[Any] = []


def reference() -> Any:
    import transformers

    if not _reference:
        make: Any = transformers.PreTrainedTokenizerFast
        _reference.append(make(tokenizer_object=byte_level(), bos_token="<|begin|>", eos_token="<|end|>"))
    return _reference[0]


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


class TestWhereTemplatesLie:
    def test_in_the_settings_by_name(self, tmp_path: Path) -> None:
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        write_folder(tmp_path, None, {"chat_template": named})
        template = ChatTemplate.load(tmp_path)
        assert template.is_available
        assert (template.render(Conversation(user("a"))), template.render(Conversation(user("a"), tools=TOOLS))) == (
            "plain",
            "tools",
        )

    def test_files_win(self, tmp_path: Path) -> None:
        write_folder(tmp_path, None, {"chat_template": "settings"})
        (tmp_path / "chat_template.jinja").write_text("file é", encoding="utf-8")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("file for tools")
        template = ChatTemplate.load(tmp_path)
        assert (template.render(Conversation(user("a"))), template.render(Conversation(user("a"), tools=TOOLS))) == (
            "file é",
            "file for tools",
        )

    def test_nowhere(self, tmp_path: Path) -> None:
        template = ChatTemplate.load(tmp_path)
        assert not template.is_available
        with pytest.raises(ChatTemplateError, match=r"has no chat template .* give the prompt as text"):
            template.render(Conversation(user("a")))

    def test_without_a_default(self) -> None:
        with pytest.raises(ChatTemplateError, match="are named rag, tool_use"):
            ChatTemplate({"tool_use": "a", "rag": "b"}).render(Conversation(user("a")))

    @pytest.mark.parametrize("setting", [3, [{"name": "default"}], ["a"]])
    def test_in_a_wrong_shape(self, tmp_path: Path, setting: object) -> None:
        write_folder(tmp_path, None, {"chat_template": setting})
        with pytest.raises(ChatTemplateError, match="neither a string nor a list"):
            ChatTemplate.load(tmp_path)

    def test_in_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
        with pytest.raises(ChatTemplateError, match="cannot be read"):
            ChatTemplate.load(tmp_path)

    def test_beside_broken_settings(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer_config.json").write_text("{")
        with pytest.raises(TokenizerError, match="not valid JSON"):
            ChatTemplate.load(tmp_path)


class TestContent:
    def test_parts_are_joined_for_templates_that_take_strings(self) -> None:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        assert ChatTemplate(TINY).render(Conversation(user(parts), add_generation_prompt=False)) == "user: one\ntwo\n"
        assert ChatTemplate(TINY).render(Conversation(user([]), add_generation_prompt=False)) == "user: \n"

    def test_a_string_becomes_a_part_for_templates_that_take_parts_only(self) -> None:
        assert ChatTemplate(PARTS).render(Conversation(user("one"))) == "user:<one>;"

    def test_templates_that_take_either_get_it_as_it_came(self) -> None:
        template = ChatTemplate(EITHER)
        assert (
            template.render(Conversation(user("one"))),
            template.render(Conversation(user([{"type": "text", "text": "one"}]))),
        ) == (
            "one;",
            "(one);",
        )

    def test_a_loop_over_pieces_of_a_string_is_no_loop_over_parts(self) -> None:
        source = "{% for line in messages[0].content.split('|') %}[{{ line }}]{% endfor %}"
        assert ChatTemplate(source).render(Conversation(user([{"type": "text", "text": "a|b"}]))) == "[a][b]"

    def test_messages_are_left_as_they_were(self) -> None:
        messages = user([{"type": "text", "text": "one"}])
        before = json.dumps(messages)
        ChatTemplate(TINY).render(Conversation(messages))
        assert json.dumps(messages) == before

    def test_rich_values_become_plain(self) -> None:
        class Role(enum.StrEnum):
            USER = "user"

        class Level(enum.IntEnum):
            LOW = 1

        class Share(float):
            pass

        source = "{{ messages[0].role }} {{ level }} {{ share }} {{ pair }}"
        rendered = ChatTemplate(source).render(
            Conversation(
                [{"role": Role.USER, "content": "a"}], {"level": Level.LOW, "share": Share(0.5), "pair": (1, None)}
            )
        )
        assert rendered == "user 1 0.5 [1, None]"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "messages must be a list of messages, not a str"),
        ({"role": "user"}, "not a dict"),
        ([], "messages is empty"),
        (["hello"], r"messages\[0\] must be an object with role and content, not a str"),
        ([*user("a"), {"content": "a"}], r"messages\[1\] has no role"),
        ([{"role": 3, "content": "a"}], "has no role"),
        ([{"role": "user"}], r"messages\[0\] has no content"),
        (user(None), "has no content"),
        (user(3), r"messages\[0\].content must be a string or a list of text parts, not a int"),
        (user(["a"]), r"content\[0\] must be an object"),
        (user([{"type": "image_url", "image_url": {}}]), "is of type 'image_url', but only text"),
        (user([{"type": "text"}]), "text must be a string, not a NoneType"),
        (user(object()), r"messages\[0\].content holds a object; send JSON values"),
    ],
)
def test_refuses_messages_of_a_wrong_shape(messages: Any, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(TINY).render(Conversation(messages))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('users only') }}", "refuses these messages: users only"),
        ("{{ messages[0].a.b }}", r"fails on these 1 messages \(UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("line\n{% if %}", "'default' has an error in line 2"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% set a = namespace(_b=1) %}", "SecurityError"),
        ("{% set a = namespace() %}{% set a.__class__ = 1 %}", "SecurityError"),
        ("{{ dict.mro() }}", "UndefinedError"),
    ],
)
def test_says_how_a_template_fails(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source).render(Conversation(user("a")))


def test_templates_find_what_transformers_gives_them() -> None:
    source = (
        "{{ dict(a=1).a }} {{ dict.fromkeys(['b']) | tojson }} {% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }} "
        "{{ {'ü': '<'} | tojson(ensure_ascii=true, separators=(',', ':')) }} {{ documents is none }} {{ eos_token }}"
    )
    rendered = ChatTemplate(source, {"eos_token": "</s>"}).render(Conversation(user("a")))
    assert rendered == '1 {"b": null} 2 {"\\u00fc":"<"} True </s>'


def test_variables_may_replace_special_tokens_but_not_what_has_a_place_of_its_own() -> None:
    template = ChatTemplate("{{ eos_token }}", {"eos_token": "</s>"})
    assert template.render(Conversation(user("a"), {"eos_token": "end"})) == "end"
    for name in ("messages", "tools", "add_generation_prompt"):
        with pytest.raises(TemplateVariableError, match=f"may not name {name}: "):
            template.render(Conversation(user("a"), {name: []}))
    with pytest.raises(TemplateVariableError, match=r"template variables\.when holds a object"):
        template.render(Conversation(user("a"), {"when": object()}))


def test_variables_may_have_any_name() -> None:
    names = ("self", "compiled", "args", "", "two words", "\ud800")
    assert ChatTemplate("{{ two }}").render(Conversation(user("a"), {**dict.fromkeys(names, 1), "two": 2})) == "2"


def test_importing_text_imports_neither_library() -> None:
    program = "import sys, inflight.text; print({'tokenizers', 'jinja2', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_a_template_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what a model's first conversation waits for."""
    parsed: list[str] = []
    parse = jinja2.Environment._parse
    monkeypatch.setattr(
        jinja2.Environment, "_parse", lambda self, source, *rest: parsed.append(source) or parse(self, source, *rest)
    )
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render(Conversation([{"role": "user", "content": "Hello"}])) == "Hello"
    assert not template.changes_text() and not template.looked_for()
    assert parsed == ["{{ messages[0].content }}"]


@pytest.mark.parametrize(
    ("source", "is_shown"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", True),
        ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", False),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}", False),
    ],
)
def test_whether_a_template_writes_system_messages(source: str, is_shown: bool) -> None:
    assert ChatTemplate(source).shows_system is is_shown
