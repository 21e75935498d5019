"""`inflight bench` of a model that answers with vectors: what is sent, and what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.conftest import Server
from text_models import write_embedder

from inflight.bench.answer import Answer

BELIEVED_OR_NOT = (0, 1)  # a shared machine makes any client late now and then


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server("--model", str(write_embedder(tmp_path_factory.mktemp("embedder"))), "--admission", "off").ready()
    yield running
    running.stop()


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "inflight.cli", "bench", *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_model_that_embeds_is_asked_for_vectors(server: Server, tmp_path: Path) -> None:
    """By itself, in texts of the lengths that were asked; nothing is printed of tokens that do not come."""
    page = tmp_path / "page.html"
    done = bench(
        server.url, "--requests", "24", "--concurrency", "4", "--warmup", "0", "--input-tokens", "uniform:10-60",
        "--save-requests", "--json", "--html", str(page),
    )  # fmt: skip
    assert done.returncode in BELIEVED_OR_NOT, done.stderr
    assert "embeddings of" in done.stderr and "E2E" in done.stderr
    assert not any(word in done.stderr for word in ("TTFT", "TPOT", "ITL", "output tokens/s", "Traceback"))
    found = json.loads(done.stdout)
    assert found["target"]["endpoint"] == "embeddings"
    rows = found["requests"]
    assert len(rows) == 24 and all(row["outcome"] == "completed" for row in rows)
    assert all(10 <= row["prompt_tokens"] <= 60 and row["output_tokens"] == 0 for row in rows)
    summary = found["summary"]
    assert summary["completed"] == 24 and summary["input_tokens_per_s"] > 0 and summary["output_tokens_per_s"] == 0
    assert summary["e2e_s"]["samples"] == 24 and summary["ttft_s"]["samples"] == 0
    assert "<html" in page.read_text()


@pytest.mark.parametrize("options", [("--prompt-text",), ("--endpoint", "embeddings", "--rate", "50")])
def test_texts_and_rates(server: Server, options: tuple[str, ...]) -> None:
    done = bench(server.url, *options, "--requests", "12", "--input-tokens", "20", "--warmup", "0", "--json")
    assert done.returncode in BELIEVED_OR_NOT, done.stderr
    assert json.loads(done.stdout)["summary"]["completed"] == 12


@pytest.mark.wide
def test_a_capacity_is_found_by_the_whole_answer(server: Server) -> None:
    done = bench(
        server.url, "--find-capacity", "--by", "concurrency", "--slo", "e2e=60000", "--requests", "16",
        "--concurrency", "64", "--input-tokens", "12", "--warmup", "0",
    )  # fmt: skip
    assert "E2E p50" in done.stderr and "input tok/s" in done.stderr and "capacity" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--output-tokens", "20"), "--output-tokens has no effect with embeddings"),
        (("--turns", "3"), "--turns has no effect with embeddings"),
        (("--slo", "ttft=100"), "give e2e"),
    ],
)
def test_what_is_about_tokens_is_refused(server: Server, options: tuple[str, ...], sentence: str) -> None:
    done = bench(server.url, *options)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


def test_tokens_asked_of_an_embedder_are_refused_by_it(server: Server) -> None:
    done = bench(server.url, "--endpoint", "completions")
    assert done.returncode != 0 and "Traceback" not in done.stderr


def test_an_answer_of_vectors() -> None:
    body = {"object": "list", "data": [{"embedding": "AAAA", "index": 0}], "usage": {"prompt_tokens": 7}}
    answer = Answer()
    answer.take_whole(json.dumps(body).encode(), 1.0)
    assert (answer.problem(), answer.vectors, answer.prompt_tokens, answer.tokens) == ("", 1, 7, 0)
    nothing = Answer()
    nothing.take_whole(b'{"object": "list", "data": []}', 1.0)
    assert "no token" in nothing.problem()
