"""Models files: what their tables mean, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from inflight.cli.models_file import MAX_WAIT, ModelsFile, read_models
from inflight.cli.serve import command


def read(tmp_path: Path, text: str, *options: str) -> ModelsFile:
    path = tmp_path / "models.toml"
    path.write_text(text, encoding="utf-8")
    with command.make_context("serve", ["--models", str(path), *options]) as verb:
        return read_models(path, verb)


def test_tables_have_the_options_of_their_model(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
        memory = 12
        max-wait = 30
        default = "small"
        [models.chat]
        model = "some/model"
        aliases = ["small"]
        pin = true
        weight = 4
        kv-memory = 2
        max_num_seqs = 5
        strategy = "continuous"
        no-prefix-caching = true
        tool-parser = "hermes"
        lora = ["sql=folder"]
        lanes.vip = { weight = 3 }
        [models.embed]
        idle = 60
        size = 0.5
        """.replace("max_num_seqs", "max-num-seqs"),
    )
    chat, embed = file.models
    assert (file.memory, file.max_wait, file.default) == (12, 30, "small")
    assert chat.names == ("chat", "small") and chat.pin and chat.weight == 4
    assert chat.engine.model == "some/model" and chat.engine.kv_memory == 2 and chat.engine.max_num_seqs == 5
    assert not chat.engine.enable_prefix_caching and chat.engine.named_loras == [("sql", "folder")]
    assert chat.scheduling.strategy == "continuous" and chat.scheduling.lanes == {"vip": {"weight": 3}}
    assert chat.server.served_model_name == ("chat", "small") and chat.server.tool_parser == "hermes"
    assert embed.engine.model is None and embed.idle == 60 and embed.size == 0.5 and not embed.pin
    assert embed.scheduling.strategy == "chunked" and embed.scheduling.admission == "auto"


def test_the_command_line_holds_for_all_that_say_nothing(tmp_path: Path) -> None:
    text = '[models.a]\n[models.b]\npolicy = "sjf"\nno-prefix-caching = false\n'
    file = read(tmp_path, text, "--policy", "fair", "--no-prefix-caching", "--max-n", "3")
    a, b = file.models
    assert (a.scheduling.policy, b.scheduling.policy) == ("fair", "sjf")
    assert not a.engine.enable_prefix_caching and b.engine.enable_prefix_caching
    assert a.server.max_n == b.server.max_n == 3 and file.max_wait == MAX_WAIT


def test_options_in_json_hold_for_all_too(tmp_path: Path) -> None:
    text = "[models.a]\n[models.b]\noverride-generation-config = { temperature = 0 }\nchat-template = '{{ x }}'\n"
    options = ("--chat-template-kwargs", '{"mood": "calm"}', "--override-generation-config", '{"top_p": 0.5}')
    a, b = read(tmp_path, text, *options).models
    assert a.engine.chat_template_kwargs == b.engine.chat_template_kwargs == {"mood": "calm"}
    assert a.server.override_generation_config == {"top_p": 0.5}
    assert b.server.override_generation_config == {"temperature": 0}
    assert (a.engine.chat_template, b.engine.chat_template) == (None, "{{ x }}")


def test_lanes_of_a_configuration_file_are_every_models(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[lanes.vip]\nweight = 2\n[lanes.night]\nbackground = true\n", encoding="utf-8")
    file = read(tmp_path, "[models.a]\nlanes.vip = { weight = 5 }\n[models.b]\n", "--config", str(config))
    a, b = file.models
    assert a.scheduling.lanes == {"vip": {"weight": 5}, "night": {"background": True}}
    assert b.scheduling.lanes == {"vip": {"weight": 2}, "night": {"background": True}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "names no model"),
        ("models = 3", "names no model"),
        ("[models.a]\n[model.b]", "did you mean 'models'"),
        ("= 3", "cannot be read"),
        ("memory = -1\n[models.a]", "memory is -1; give a number above 0"),
        ("memory = true\n[models.a]", "memory is True"),
        ('default = "x"\n[models.a]', "default is 'x', which is not one of its models"),
        ('default = ["a"]\n[models.a]', "not one of its models"),
        ("[models.a]\nkv-memry = 1", r"\[models.a\] has the key 'kv-memry', which is no option; did you mean"),
        ("[models.a]\nport = 1", r"\[models.a\] has the key 'port'"),
        ("[models.a]\nkv-memory = 0", r"\[models.a\]: --kv-memory is 0"),
        ('[models.a]\nkv-memory = "much"', r"\[models.a\]: .*kv-memory"),
        ("[models.a]\npin = 1", "pin is 1; give true or false"),
        ("[models.a]\npin = true\nidle = 3", "idle has no effect with pin"),
        ("[models.a]\naliases = 3", "aliases are 3"),
        ('[models.a]\naliases = ["b"]\n[models.b]', "'b' is a name of 'a' and of 'b'"),
        ('[models.a]\nlora = ["b=x"]\n[models.b]', "'b' is a name of"),
        ("[models.a]\nlanes = 3", "write lanes as tables"),
        ('[models.a]\npreemption = "swap"', r"\[models.a\]: --preemption swap needs room"),
    ],
)
def test_mistakes_are_reported_with_their_place(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(click.UsageError, match=sentence) as error:
        read(tmp_path, text)
    assert "models.toml" in error.value.message


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["MODEL"], "MODEL does not go with --models: set it in the model's table"),
        (["--model", "x"], "--model does not go with --models: set it"),
        (["--lora", "a=b"], "set it in the model's table"),
        (["--served-model-name", "x"], "aliases"),
        (["--record", "x"], "--record does not go with --models"),
        (["--kv-events-config", '{"enable_kv_cache_events": true}'], "its addresses are one engine's"),
    ],
)
def test_options_that_have_no_place(tmp_path: Path, options: list[str], sentence: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text("[models.a]\n", encoding="utf-8")
    with pytest.raises(click.UsageError, match=sentence):
        command.main(["--models", str(path), *options], standalone_mode=False)
