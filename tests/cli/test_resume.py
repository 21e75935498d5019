"""`inflight run --resume`, and lines in OpenAI's batch form: what is kept, cut, answered anew and refused."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from .terminal import Caller, finished, spawn, write_lines
from .test_run_lines import until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def batch_line(custom_id: str, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    given = {"model": "m", "max_tokens": 3, "ignore_eos": True, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": given}


def mixed() -> list[Any]:
    """Both forms, with good and bad lines of each."""
    return [
        {"prompt": "one", "max_tokens": 3},
        batch_line("a", prompt="abc"),
        "not json",
        batch_line("b", CHAT, messages=[{"role": "user", "content": "hi"}], max_completion_tokens=5),
        batch_line("a", prompt="again"),
        batch_line("c", prompt=[1, 2, 3], n=2),
        batch_line("d"),
        batch_line("e", prompt="x", surprise=1),
        {"custom_id": "f", "body": {}},
        {"prompt": "two", "max_tokens": 4},
        batch_line("g", prompt="x" * 300),
    ]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the part on which two runs must agree."""
    lines = json.loads(json.dumps(lines))
    for line in lines:
        line.pop("timings", None)
        line.pop("cached_tokens", None)
        if line.get("response"):
            line["response"]["body"].pop("created", None)
            line["response"]["body"].pop("id", None)
            line["response"]["body"].get("usage", {}).pop("prompt_tokens_details", None)
    return lines


def test_batch_lines_are_answered_in_their_own_form(inflight: Caller, tmp_path: Path) -> None:
    result = inflight("run", "--input", write_lines(tmp_path / "in.jsonl", *mixed()))
    assert result.code == 1 and "Traceback" not in result.err and "4 requests answered, 6 failed" not in result.err
    lines = result.lines
    assert [line.get("index") for line in lines] == [0, None, 2, None, None, None, None, None, None, 9, None]
    assert [line.get("id") for line in lines if "id" in line] == [f"batch_req_{n}" for n in (1, 3, 4, 5, 6, 7, 8, 10)]
    body = lines[1]["response"]["body"]
    assert (lines[1]["custom_id"], lines[1]["response"]["status_code"], lines[1]["error"]) == ("a", 200, None)
    assert (body["object"], body["model"], body["usage"]["completion_tokens"]) == ("text_completion", "m", 3)
    chat = lines[3]["response"]["body"]
    assert chat["choices"][0]["message"]["role"] == "assistant" and chat["usage"]["completion_tokens"] == 5
    assert len(lines[5]["response"]["body"]["choices"]) == 2
    assert lines[4]["error"]["code"] == "duplicate_custom_id" and lines[4]["response"] is None
    assert lines[8]["error"]["code"] == "missing_field" and lines[8]["custom_id"] == "f"
    assert lines[7]["response"]["status_code"] == 200, "an unknown field is ignored"
    for index, word in ((6, "'prompt' is missing"), (10, "tokens")):
        assert lines[index]["response"]["status_code"] == 400 and lines[index]["error"] is None
        assert word in lines[index]["response"]["body"]["error"]["message"]


def test_an_output_cut_at_any_byte_is_completed(inflight: Caller, tmp_path: Path) -> None:
    source, target = write_lines(tmp_path / "in.jsonl", *mixed()), tmp_path / "out.jsonl"
    first = inflight("run", "--input", source, "--output", target, "--resume")
    assert first.code == 1 and "0 answers kept" in first.err
    whole, expected = target.read_bytes(), without_times(read(target))
    chosen = random.Random(5)
    ends = [index + 1 for index, byte in enumerate(whole) if byte == 10]
    for cut in (0, *chosen.sample(range(len(whole)), 8), ends[2], ends[2] - 1, len(whole)):
        target.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends)
        result = inflight("run", "--input", source, "--output", target, "--resume")
        assert f"{kept} answer{'' if kept == 1 else 's'} kept" in result.err and result.code == 1
        assert without_times(read(target)) == expected
        assert target.read_bytes()[: ends[kept - 1] if kept else 0] == whole[: ends[kept - 1] if kept else 0]
    again = inflight("run", "--input", source, "--output", target, "--resume")
    assert "11 answers kept" in again.err and "0 requests answered" in again.err and again.code == 1


def test_gaps_are_filled_behind_what_is_there(inflight: Caller, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", *({"prompt": "x" * n, "max_tokens": 2} for n in range(1, 7)))
    target = tmp_path / "out.jsonl"
    inflight("run", "--input", source, "--output", target)
    lines = read(target)
    write_lines(target, lines[0], lines[3], lines[5])
    result = inflight("run", "--input", source, "--output", target, "--resume")
    assert result.code == 0 and [line["index"] for line in read(target)] == [0, 3, 5, 1, 2, 4]
    assert without_times(sorted(read(target), key=lambda line: line["index"])) == without_times(lines)


def test_a_broken_end_is_cut_off(inflight: Caller, tmp_path: Path) -> None:
    source, target = write_lines(tmp_path / "in.jsonl", *mixed()), tmp_path / "out.jsonl"
    inflight("run", "--input", source, "--output", target)
    whole = target.read_bytes()
    for rubbish in (b"\x00" * 50, b"\x00" * 50 + b"\n", b'{"index": 3, "te\n', b"\xff"):
        target.write_bytes(whole[: whole.index(b"\n") + 1] + rubbish)
        assert "1 answer kept" in inflight("run", "--input", source, "--output", target, "--resume").err
        assert without_times(read(target)) == without_times([json.loads(line) for line in whole.splitlines()])


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([{"prompt": "other words"}, *mixed()[1:]], "its answer 0 does not fit line 1"),
        ([mixed()[0], batch_line("z", prompt="abc"), *mixed()[2:]], "its answer 1 does not fit line 2"),
        ([mixed()[1], mixed()[0], *mixed()[2:]], "its answer 0 does not fit line 1"),
        ([*mixed()[:2], batch_line("z", prompt="good"), *mixed()[3:]], "its answer 2 does not fit line 3"),
        (mixed()[:3], "it answers line 10, counted from 0, but"),
    ],
)
def test_the_output_of_another_input_is_refused(inflight: Caller, tmp_path: Path, lines: list[Any], word: str) -> None:
    target = tmp_path / "out.jsonl"
    inflight("run", "--input", write_lines(tmp_path / "in.jsonl", *mixed()), "--output", target)
    before = target.read_bytes() + b"torn"
    target.write_bytes(before)
    result = inflight("run", "--input", write_lines(tmp_path / "in2.jsonl", *lines), "--output", target, "--resume")
    assert word in result.sentence() and target.read_bytes() == before


def test_files_that_are_no_output_are_left_alone(inflight: Caller, tmp_path: Path) -> None:
    source, target = write_lines(tmp_path / "in.jsonl", {"prompt": "x", "max_tokens": 2}), tmp_path / "notes"
    for content in ("dear diary\nmore\n", '{"index": true, "error": ""}\n{}\n', '{"index": 0, "error": "x"}\n' * 2):
        target.write_text(content)
        result = inflight("run", "--input", source, "--output", target, "--resume")
        assert str(target) in result.sentence() and target.read_text() == content


def test_what_resume_needs(inflight: Caller, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", {"prompt": "x"})
    assert "needs --output" in inflight("run", "--input", source, "--resume").sentence()
    assert "needs --input" in inflight("run", "--input", "-", "--output", tmp_path / "o", "--resume").sentence()
    assert "needs --input" in inflight("run", "hello", "--output", tmp_path / "o", "--resume").sentence()
    assert not (tmp_path / "o").exists()


def test_killed_in_the_middle_and_resumed(inflight: Caller, tiny: Path, tmp_path: Path) -> None:
    lines = [{"prompt": f"{n}", "max_tokens": 60, "ignore_eos": True} for n in range(150)]
    source, target, whole = write_lines(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    process = spawn("run", "--input", source, "--output", target, "--model", tiny, "--max-num-seqs", 4)
    until(lambda: target.exists() and target.stat().st_size > 3000)
    process.send_signal(signal.SIGKILL)
    finished(process)
    kept = target.read_bytes().count(b"\n")
    assert 0 < kept < 150
    result = inflight("run", "--input", source, "--output", target, "--resume")
    assert result.code == 0 and f"{kept} answer" in result.err and f"{150 - kept} requests answered" in result.err
    inflight("run", "--input", source, "--output", whole)
    assert without_times(read(target)) == without_times(read(whole))
