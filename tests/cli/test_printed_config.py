"""`serve --print-config`: a file that --config reads, with where each option comes from, and without secrets."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from inflight.cli import call

FILE = """block-size = 32
no-prefix-caching = true
lora = ["a=b"]
[kv-events-config]
enable_kv_cache_events = true
[lanes.batch]
background = true
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert call(["serve", "--print-config", *words]) == 0
    return capsys.readouterr().out


def test_it_is_read_again_as_it_was_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, again = tmp_path / "first.toml", tmp_path / "again.toml"
    file.write_text(FILE)
    monkeypatch.setenv("INFLIGHT_MAX_NUM_SEQS", "6")
    words = ["--preset", "latency", "-c", "4096", "--score-tokens", "yes", "no", "--api-key", "s3cret", "--no-ui"]
    words += ["--chat-template-kwargs", '{"a": "b\\"c"}', "--drain-timeout", "5", "--share-prefixes"]
    text = printed(capsys, "smollm2", "--config", str(file), *words)
    monkeypatch.delenv("INFLIGHT_MAX_NUM_SEQS")
    for line in (
        'model = "smollm2"  # the argument MODEL',
        "max-num-seqs = 6  # INFLIGHT_MAX_NUM_SEQS",
        "max-num-batched-tokens = 72  # --preset latency",
        "max-model-len = 4096  # the command line",
        f"block-size = 32  # --config {file}",
        'admission = "auto"  # default of serve',
        "isolate-tenants = false  # the command line",
        "# api-key is secret; give it by INFLIGHT_API_KEY  # the command line",
        "# port = 8000",
    ):
        assert f"\n{line}\n" in text
    assert "s3cret" not in text
    again.write_text(text)
    values = tomllib.loads(text)
    assert values["lanes"] == {"batch": {"background": True}} and values["score-tokens"] == ["yes", "no"]
    assert json.loads(values["chat-template-kwargs"]) == {"a": 'b"c'}
    assert tomllib.loads(printed(capsys, "--config", str(again))) == values


def test_a_file_in_yaml_is_named_as_such(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("port: 8000\n")
    assert call(["serve", "--config", str(file)]) == 2
    assert "Options are written in TOML, not YAML: max-num-seqs = 64." in capsys.readouterr().err


def test_mistakes_are_reported_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["serve", "--print-config", "--max-model-len", "1"]) == 2
    printed = capsys.readouterr()
    assert not printed.out and "--max-model-len is 1, which leaves no room" in printed.err
    assert call(["serve", "--print-config", "--models", "local", "--replicas", "2"]) == 2
    assert "--replicas does not go with --models" in capsys.readouterr().err
