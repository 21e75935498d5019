"""`--config FILE.toml`: every option by its long name, checked as on the command line, which wins."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest

from inflight.cli.run import command as run

from .terminal import Caller

ONE = ("run", "hello", "--max-tokens", 3, "--ignore-eos", "--verbose")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def test_what_it_holds_is_in_force(inflight: Caller, config: Path, tiny: Path) -> None:
    config.write_text(
        f'model = "{tiny}"\nmax-num-seqs = 3\nkv-memory = 0.01\ndtype = "float32"\nwatermark = 0.5\n'
        'logit-bias = {"70" = 100}\nstop-token-ids = [71, 72]\nstop = "zzz"\nmax-tokens = 4\nignore-eos = true\n'
        'json = true\nverbose = true\nquantization = "int8"\n'
        'kv-cache-dtype = "int8"\n'
    )
    result = inflight("run", "hello", "--config", config, model=False)
    assert result.code == 0, result.err
    assert result.lines[0]["token_ids"] == [70] * 4
    for setting in (
        "max_num_seqs: 3",
        "dtype: float32",
        "quantization: int8 (as set",
        "kv_cache_dtype: int8 (as set",
        "watermark: 0.5",
        f"model: {tiny}",
        "num_blocks: ",
    ):
        assert setting in result.err


def test_the_command_line_wins(inflight: Caller, config: Path) -> None:
    config.write_text("max-num-seqs = 3\nblock-size = 32\n")
    result = inflight(*ONE, "--config", config, "--max-num-seqs", 5)
    assert "max_num_seqs: 5 (as set)" in result.err and "block_size: 32" in result.err
    assert "max_num_seqs: 5" in inflight(*ONE, "--max-num-seqs", 5, "--config", config).err


@pytest.mark.parametrize("text", ['["yes", "no"]', '"yes no"'])
def test_an_option_of_two_values_takes_both(config: Path, text: str) -> None:
    config.write_text(f"score-tokens = {text}\n")
    assert run.make_context("run", ["--config", str(config)]).params["score_tokens"] == ("yes", "no")


@pytest.mark.parametrize(("text", "caching"), [("true", False), ("false", True)])
def test_no_prefix_caching_means_what_it_says(inflight: Caller, config: Path, text: str, caching: bool) -> None:
    config.write_text(f"no-prefix-caching = {text}\n")
    assert f"prefix_caching: {caching} " in inflight(*ONE, "--config", config).err
    assert "prefix_caching: False " in inflight(*ONE, "--config", config, "--no-prefix-caching").err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max-num-sequences = 3", "'max-num-sequences', which is no option; did you mean 'max-num-seqs'?"),
        ("max_num_seqs = 3", "did you mean 'max-num-seqs'?"),
        (
            "zzzz = 3",
            "'zzzz', which is no option; known are: admission, attention-backend, backend, batch-invariant, ",
        ),
        ('prompt = "x"', "'prompt', which is no option"),
        ('config = "x"', "'config', which is no option"),
        ("max-num-seqs = 1.5", "'1.5' is not a valid integer"),
        ("max-num-seqs = [1]", "max-num-seqs = [1]; give one number or text."),
        ("max-num-seqs = true", "max-num-seqs = true; give one number or text."),
        ('max-num-seqs = "many"', "'many' is not a valid integer"),
        ("ignore-eos = 1", "ignore-eos = 1; give true or false."),
        ("stop = [[1]]", "give one number or text"),
        ("watermark = nan", "--watermark is nan"),
        ("n = 0", "n is 0; give"),
        ("lanes = 3", "lanes"),
        ("[lanes.batch]\nrows = 2", "Lane 'batch' has the setting 'rows'; known are policy, weight"),
        ("[lanes.batch]\nmin_rows = 99", "The lanes keep 99 rows for themselves"),
        ('[lanes.batch]\npolicy = "fifo"', "--policy is 'fifo'; known are fcfs"),
        ("oops", "cannot be read: Expected '=' after a key"),
    ],
)
def test_mistakes(inflight: Caller, config: Path, text: str, sentence: str) -> None:
    config.write_text(text + "\n")
    result = inflight("run", "hello", "--config", config)
    assert result.code in (1, 2) and "Traceback" not in result.err
    assert sentence in result.err


def test_files_that_cannot_be_read(inflight: Caller, config: Path, tmp_path: Path) -> None:
    assert "does not exist" in inflight("run", "x", "--config", config).sentence()
    assert "is a directory" in inflight("run", "x", "--config", tmp_path).sentence()
    config.write_bytes(b"\xff\xfe")
    assert "cannot be read" in inflight("run", "x", "--config", config).sentence()


@pytest.mark.parametrize("verb", ["plan", "tune"])
def test_sizing_reads_a_file_too(verb: str, tmp_path: Path) -> None:
    file = tmp_path / "sizing.toml"
    file.write_text('model = "llama-3-8b"\nhardware = "h100"\nrate = 5\nslo = ["ttft=500"]\n')
    command: click.Command = importlib.import_module(f"inflight.cli.{verb}").command
    values = command.make_context(verb, ["--config", str(file), "--rate", "7"]).params
    assert (values["model"], values["hardware"], values["rate"], values["slo"]) == (
        "llama-3-8b", "h100", 7.0, ("ttft=500",),
    )  # fmt: skip


def test_an_option_of_json_may_be_a_table(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[kv-events-config]\nenable_kv_cache_events = true\nendpoint = "tcp://*:5599"\n')
    command: click.Command = importlib.import_module("inflight.cli.serve").command
    events = command.make_context("serve", ["--config", str(file)]).params["kv_events_config"]
    assert events is not None and events.endpoint == "tcp://*:5599"
