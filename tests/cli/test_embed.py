"""`inflight embed`: vectors of a file's lines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from text_models import write_classifier, write_embedder

from inflight.cli import call

LINES = ['"a text"', '{"text": "another one", "id": "b"}', "not JSON", '{"input": "' + "word " * 200 + '"}', '"last"']


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(LINES))
    return path


def test_lines_of_json(embedder: Path, lines: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.jsonl"
    assert call(["embed", str(lines), "--model", str(embedder), "--output", str(target)]) == 1
    answer = [json.loads(line) for line in target.read_text().splitlines()]
    assert [one["index"] for one in answer] == [0, 1, 2, 3, 4] and answer[1]["id"] == "b"
    assert [len(one.get("embedding", ())) for one in answer] == [64, 64, 0, 0, 64]
    assert "it is not JSON" in answer[2]["error"] and "maximum context length" in answer[3]["error"]
    assert "3 vectors, 2 without" in capfd.readouterr().err


def test_an_array(embedder: Path, lines: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.npy"
    asked = ["embed", str(lines), "--model", str(embedder), "--output", str(target), "--truncate", "--dimensions", "16"]
    assert call(asked) == 1
    array = np.load(target)
    assert array.shape == (5, 16) and array.dtype == np.float32
    assert np.isnan(array[2]).all() and np.allclose(np.linalg.norm(array[[0, 1, 3, 4]], axis=1), 1)


def test_what_cannot_be_done_is_reported_at_once(
    embedder: Path, lines: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(["embed", str(lines), "--model", str(write_classifier(tmp_path / "classifier"))]) == 2
    assert call(["embed", str(lines), "--model", str(embedder), "--prompt-name", "query"]) == 2
    assert call(["embed", str(tmp_path / "nothing.jsonl"), "--model", str(embedder)]) == 2
    err = capfd.readouterr().err
    assert "3 labels of a text" in err and "prompts are: none" in err and "is no file" in err
