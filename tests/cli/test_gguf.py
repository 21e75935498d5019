"""A .gguf file on the command line: a model like any other."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from gguf_files import convert

from inflight.cli import call
from inflight.planning.question import Question

from .terminal import Caller


@pytest.fixture
def file(tiny: Path, tmp_path: Path) -> Path:
    return convert(tiny, tmp_path / "Tiny-F32.gguf", "llama")


def test_it_answers_as_the_folder_does(tiny: Path, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("run", "hello", "--max-tokens", 8, "--ignore-eos", "--temperature", 0, "--dtype", "float32")
    expected = Caller(capfd, tiny)(*asked)
    assert expected.code == 0 and Caller(capfd, file)(*asked) == expected
    assert Caller(capfd, file.parent)(*asked) == expected  # the one file of a folder


@pytest.mark.wide
def test_it_is_planned_with(
    tiny: Path, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials of few requests and one setting, on a GPU that does not hold millions of blocks: what is looked at is that
    the models are the same to it."""
    gpu = tmp_path / "small.toml"
    gpu.write_text("[gpus.small]\nmemory-gb = 4\nbandwidth-gb-per-s = 300\nbf16-tflops = 121\n")
    monkeypatch.setattr("inflight.cli.plan.Question", partial(Question, requests=(10, 20, 40)))
    asked = (
        "--hardware",
        "small",
        "--hardware-file",
        str(gpu),
        "--rate",
        "1",
        "--input-tokens",
        "50",
        "--output-tokens",
        "20",
        "--strategy",
        "chunked",
    )
    asked += ("--max-num-seqs", "8", "--max-num-batched-tokens", "256")
    result = []
    for model in (tiny, file, file.parent):
        assert call(["plan", "--model", str(model), *asked]) == 0
        result.append(re.sub(r"\S+ has 4 query heads", "it has 4 query heads", capfd.readouterr().out))
    assert result[0] == result[1] == result[2] != ""


def test_what_is_wrong_with_it_is_one_sentence(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    for verb, *more in (("run", "hello"), ("doctor",)):
        result = Caller(capfd, file)(verb, *more)
        assert result.code != 0 and "is truncated" in result.err and result.err.count("\n") == 1
    assert call(["plan", "--model", str(file), "--hardware", "l4", "--rate", "1"]) != 0
    assert "is truncated" in capfd.readouterr().err


def test_what_is_no_such_file_is_reported(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    for model, more, sentence in (
        (folder, (), "folder.gguf is no model folder: it has no config.json (it is empty)"),
        (tmp_path / "none.gguf", (), "file {} does not exist; give an existing file or folder, or a hub id"),
        (file, ("--backend", "transformers"), "is a GGUF file, which our own kernels compute; leave --backend out."),
    ):
        result = Caller(capfd, model)("run", "hello", *more)
        assert result.code == (2 if more else 1) and sentence.format(model) in result.err
