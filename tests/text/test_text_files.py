"""A model's text files: another tokenizer, another template, variables unless a conversation has others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inflight import build
from inflight.build import text_files
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError, read_template
from inflight.text import ChatTemplateError, Conversation, TemplateVariableError, TextFiles

TEMPLATE = "{{ mood }}:{{ messages[0].content }}"
HELLO = [{"role": "user", "content": "Hi"}]


def test_a_template_and_variables_of_the_options() -> None:
    files = text_files(EngineSettings(chat_template=TEMPLATE, chat_template_kwargs={"mood": "calm"}))
    _, template = files.load()
    assert template.render(Conversation(HELLO)) == "calm:Hi"
    assert template.render(Conversation(HELLO, {"mood": "glad"})) == "glad:Hi"


def test_a_tokenizer_brings_its_template_where_it_has_one(tiny: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((build.BUILT_IN / name).read_bytes())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    bare = text_files(EngineSettings(model=str(tiny), tokenizer=str(tmp_path)))
    own = TextFiles(str(tiny)).load_template()
    assert bare.load_template().written == own.written
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer, template = bare.load()
    assert template.written == TEMPLATE and tokenizer.vocab_size == TextFiles(str(build.BUILT_IN)).load()[0].vocab_size


def test_a_faulty_template_is_an_error_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match=r"^--chat-template has an error in line 1: .*; correct it"):
        text_files(EngineSettings(chat_template="{% for one in"))
    with pytest.raises(SettingsError, match=r"--chat-template nofile cannot be read .*; give a Jinja file"):
        text_files(EngineSettings(chat_template="nofile"))
    (tmp_path / "plain.txt").write_text("Hello")
    with pytest.raises(SettingsError, match="holds no Jinja template"):
        read_template("--chat-template", str(tmp_path / "plain.txt"))
    with pytest.raises(TemplateVariableError, match=r"--chat-template-kwargs: .*may not name messages"):
        text_files(EngineSettings(chat_template_kwargs={"messages": []})).load()
