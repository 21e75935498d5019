"""INFLIGHT_<LONG_NAME> gives every option of every verb: behind the command line, before --config."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import click
import pytest

from inflight.cli import VERBS
from inflight.cli.models_file import read_models
from inflight.cli.serve import command as serve
from inflight.cli.variants import read_variants
from inflight.cli.verb import variables_of

from .terminal import Caller

ONE = ("run", "hello", "--max-tokens", 3, "--verbose")
SOURCES = Path(__file__).parents[2] / "src" / "inflight"


def parameters(verb: str) -> list[click.Parameter]:
    return list(importlib.import_module(f"inflight.cli.{verb}").command.params)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_its_variable(verb: str) -> None:
    for one in parameters(verb):
        if isinstance(one, click.Option) and not one.hidden and one.opts != ["--kernels"]:
            long = [f"INFLIGHT_{name.lstrip('-').upper().replace('-', '_')}" for name in one.opts]
            assert set(long) <= set(one.envvar or ()), one.opts
        else:
            assert not one.envvar


def test_no_variable_has_another_meaning_too() -> None:
    """INFLIGHT_KERNELS says what a build compiles, so that `doctor --kernels` has no variable."""
    others = {
        name
        for path in SOURCES.rglob("*.py")
        for name in re.findall(r'"(INFLIGHT_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert "INFLIGHT_ISA" in others
    others -= {"INFLIGHT_LOG_FORMAT"}  # read for the lines before the options are, with the same meaning
    assert not others & {name for verb in VERBS for one in parameters(verb) for name in variables_of(one)}


def test_the_command_line_wins_over_the_environment_and_that_over_a_file(
    inflight: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("max-num-seqs = 3\nblock-size = 32\nwatermark = 0.5\n")
    monkeypatch.setenv("INFLIGHT_CONFIG", str(config))
    monkeypatch.setenv("INFLIGHT_MAX_NUM_SEQS", "4")
    monkeypatch.setenv("INFLIGHT_BLOCK_SIZE", "64")
    said = inflight(*ONE, "--max-num-seqs", 5).err
    assert "max_num_seqs: 5 (as set)" in said and "block_size: 64" in said and "watermark: 0.5" in said
    assert "kv_allocation: paged" in said
    assert "max_num_seqs: 4 (as set)" in inflight(*ONE).err
    monkeypatch.setenv("INFLIGHT_MAX_NUM_SEQS", "")  # as if there were none
    assert "max_num_seqs: 3 (as set)" in inflight(*ONE).err


@pytest.mark.parametrize(("text", "caching"), [("true", False), ("1", False), ("false", True), ("no", True)])
def test_a_flag_means_what_its_name_says(
    inflight: Caller, monkeypatch: pytest.MonkeyPatch, text: str, caching: bool
) -> None:
    monkeypatch.setenv("INFLIGHT_NO_PREFIX_CACHING", text)
    assert f"prefix_caching: {caching} " in inflight(*ONE).err


def test_words_are_values_of_an_option_that_takes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_API_KEY", "one two")
    monkeypatch.setenv("INFLIGHT_NO_UI", "yes")
    monkeypatch.setenv("INFLIGHT_ISOLATE_TENANTS", "false")
    values = serve.make_context("serve", []).params
    assert (values["api_key"], values["ui"], values["isolate_tenants"]) == (("one", "two"), False, False)
    assert serve.make_context("serve", ["--isolate-tenants"]).params["isolate_tenants"] is True


def test_the_address_of_a_service_that_kubernetes_sets_is_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_PORT", "tcp://10.0.0.7:80")
    monkeypatch.setenv("INFLIGHT_KV_TRANSFER_PORT", "tcp://10.0.0.8:80")
    values = serve.make_context("serve", []).params
    assert (values["port"], values["kv_transfer_port"]) == (8000, None)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("MAX_NUM_SEQS", "many", "'many' is not a valid integer. --max-num-seqs comes from the environment variable "),
        ("MAX_NUM_SEQS", "0", "--max-num-seqs is 0; give a whole number from 1 to 2,147,483,647. --max-num-seqs comes"),
        ("N", "0", "n is 0; give a whole number from 1 to 1024. --n comes from the environment variable "),
        ("IGNORE_EOS", "perhaps", "'perhaps' is not a valid boolean"),
        ("CONFIG", "/nowhere", "File '/nowhere' does not exist. --config comes from the environment variable "),
        ("PRESET", "quick", "--preset is 'quick'; known are"),
        ("SCORE_TOKENS", "yes", "Takes 2 values but 1 was given. --score-tokens comes from "),
    ],
)
def test_a_wrong_value_names_its_variable(
    inflight: Caller, monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(f"INFLIGHT_{name}", value)
    said = inflight("run", "hello").sentence()
    assert sentence in said and said.endswith(f" comes from the environment variable INFLIGHT_{name}.")


def test_options_that_do_not_go_together_name_the_one_of_the_environment(
    inflight: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFLIGHT_KV_MEMORY", "1")
    said = inflight("run", "hello", "--num-blocks", 9).sentence()
    assert said.endswith("give one of them. --kv-memory comes from the environment variable INFLIGHT_KV_MEMORY.")
    assert "environment" not in inflight("run", "hello", "--kv-memory", 1, "--num-blocks", 9).sentence()


def test_an_argument_wins_over_the_variable_of_its_option(
    inflight: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INFLIGHT_MODEL", "built-in")
    said = inflight("chat", tmp_path / "folder", model=False).sentence()
    assert "folder does not exist" in said


def test_a_table_of_a_model_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "models.toml"
    file.write_text("[models.a]\nmax-num-seqs = 3\n[models.b]\n")
    monkeypatch.setenv("INFLIGHT_MAX_NUM_SEQS", "4")
    context = serve.make_context("serve", ["--models", str(file)])
    with context:
        found: Any = read_models(file, context)
    assert [one.engine.max_num_seqs for one in found.models] == [3, 4]


def test_settings_of_a_comparison_begin_with_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_MAX_NUM_SEQS", "4")
    compare: click.Command = importlib.import_module("inflight.cli.compare").command
    with compare.make_context("compare", []):
        variants = read_variants(["a=--max-num-seqs 3", "b=--block-size 32"])
    assert [one.engine.max_num_seqs for one in variants] == [3, 4]
