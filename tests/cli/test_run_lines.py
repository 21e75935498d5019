"""`inflight run --input`: many lines in one batched run, good ones and bad ones, pipes and Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from inflight.build import build_engine
from inflight.cli.files import LineReader
from inflight.cli.line_forms import AnswerForms
from inflight.cli.run_lines import LineRun, line_writer
from inflight.config.engine import EngineSettings
from inflight.core.types.sampling import SamplingParams
from inflight.records.schema import of_kind, read_records

from .terminal import COMMAND, Caller, finished, spawn, write_lines


def test_answers_in_the_order_of_the_lines(inflight: Caller, tmp_path: Path) -> None:
    lengths = [20, 1, 9, 3, 14, 2]
    source = write_lines(
        tmp_path / "in.jsonl", *({"prompt": f"n {n}", "max_tokens": n, "ignore_eos": True} for n in lengths)
    )
    target = tmp_path / "out.jsonl"
    result = inflight("run", "--input", source, "--output", target)
    assert (result.code, result.out) == (0, "")
    lines = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert [line["index"] for line in lines] == list(range(6))
    assert [line["output_tokens"] for line in lines] == lengths
    assert set(lines[0]) == {
        "index", "text", "token_ids", "finish_reason", "prompt_tokens", "output_tokens", "cached_tokens", "timings",
    }  # fmt: skip
    assert "6 requests answered in " in result.err and "failed" not in result.err
    for word in ("throughput", "latency", "TTFT", "TPOT", "E2E", "p50", "p95", "p99", "over 6 requests"):
        assert word in result.err


def test_lines_that_only_score(inflight: Caller, tmp_path: Path) -> None:
    ids = list(range(50, 75))
    source = write_lines(
        tmp_path / "in.jsonl",
        {"prompt_token_ids": ids, "max_tokens": 0, "prompt_logprobs": 2},
        {"prompt_token_ids": ids, "max_tokens": 2, "ignore_eos": True, "prompt_logprobs": None},
        {"prompt_token_ids": ids, "max_tokens": 1, "prompt_logprobs": 2},
    )
    result = inflight("run", "--input", source)
    scored, answered, both = result.lines
    assert result.code == 0 and "3 requests answered in " in result.err and "over 2 requests" in result.err
    assert [entry and entry["token_id"] for entry in scored["prompt_logprobs"]] == [None, *ids[1:]]
    assert scored["prompt_logprobs"] == both["prompt_logprobs"] and "prompt_logprobs" not in answered
    assert [line["output_tokens"] for line in result.lines] == [0, 2, 1]
    assert scored["timings"]["ttft_ms"] is None and scored["cached_tokens"] == both["cached_tokens"] == 0


def test_good_lines_run_beside_bad_ones(inflight: Caller, tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "in.jsonl",
        {"prompt": "one", "max_tokens": 3},
        "not json",
        "",
        "   ",
        '{"prompt": "x", "temperature": NaN}',
        {"prompt": "two", "max_tokens": 2, "stop": None, "temperature": None, "n": None},
        {"prompt": "x", "logit_bias": {"384": 1}},
        {"prompt": "x", "stop_token_ids": [10**12]},
        {"prompt_token_ids": [1] * 300},
        {"prompt": "x", "stop": 5},
        {"prompt": "three", "top_k": 10**25, "max_tokens": 3},
    )
    result = inflight("run", "--input", source, "--ignore-eos")
    assert result.code == 1 and "Traceback" not in result.err
    assert [line["index"] for line in result.lines] == list(range(9))
    answered = {line["index"]: line["output_tokens"] for line in result.lines if "error" not in line}
    assert answered == {0: 3, 3: 2, 8: 3}
    for line, number in zip((1, 2, 4, 5, 6, 7), (2, 5, 7, 8, 9, 10), strict=True):
        error = result.lines[line]["error"]
        assert error.startswith(f"line {number}: ") and f"inflight: {error}\n" in result.err
    assert "3 requests answered, 6 failed" in result.err


def test_nothing_but_bad_lines(inflight: Caller, tmp_path: Path) -> None:
    result = inflight("run", "--input", write_lines(tmp_path / "in.jsonl", "{", "}"))
    assert result.code == 1 and "0 requests answered, 2 failed" in result.err and "latency" not in result.err
    empty = inflight("run", "--input", write_lines(tmp_path / "empty.jsonl"))
    assert (empty.code, empty.out) == (0, "") and "0 requests answered" in empty.err


def test_files_that_are_not_utf8(inflight: Caller, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(
        b'\xef\xbb\xbf{"prompt": "one", "max_tokens": 2}\r\n{"prompt": "caf\xe9"}\n\xff\xfe{\x00\n'
        b'{"prompt": "two", "max_tokens": 2}'
    )
    result = inflight("run", "--input", source)
    assert result.code == 1
    assert [("error" in line) for line in result.lines] == [False, True, True, False]
    assert result.lines[1]["error"] == "line 2: not UTF-8: byte 0xE9 at character 16; convert the file to UTF-8."


def test_forced_lengths_and_shared_prefixes(inflight: Caller, tmp_path: Path) -> None:
    line = {"prompt_token_ids": list(range(40)), "max_tokens": 30}
    source = write_lines(tmp_path / "in.jsonl", *({**line, "output_tokens": n} for n in (4, 17, 30)))
    result = inflight("run", "--input", source, "--max-num-seqs", 1, "--json")
    assert [one["output_tokens"] for one in result.lines] == [4, 17, 30]
    assert [one["cached_tokens"] for one in result.lines] == [0, 32, 32]
    summary = json.loads(result.err)
    assert (summary["requests"], summary["output_tokens"], summary["cached_tokens"]) == (3, 51, 64)
    without = inflight("run", "--input", source, "--max-num-seqs", 1, "--no-prefix-caching")
    assert [one["token_ids"] for one in without.lines] == [one["token_ids"] for one in result.lines]
    assert sum(one["cached_tokens"] for one in without.lines) == 0


def test_little_memory_preempts_and_says_so(inflight: Caller, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", *({"prompt": f"{n}", "max_tokens": 60} for n in range(8)))
    roomy = inflight("run", "--input", source, "--ignore-eos")
    tight = inflight("run", "--input", source, "--ignore-eos", "--num-blocks", 8)
    assert "preemptions" in tight.err and "preemptions" not in roomy.err
    assert [line["token_ids"] for line in tight.lines] == [line["token_ids"] for line in roomy.lines]


def test_many_lines_with_few_rows_and_a_record(inflight: Caller, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", *({"prompt": "x" * (n % 30 + 1)} for n in range(300)))
    record = tmp_path / "record.jsonl"
    result = inflight("run", "--input", source, "--record", record, "--max-tokens", 5, "--max-num-seqs", 7)
    assert [line["index"] for line in result.lines] == list(range(300))
    records = list(read_records(record))
    requests = {int(one.request.request_id): one for one in of_kind(records, "request")}
    assert len(requests) == 300
    assert all(list(requests[line["index"]].samples[0].token_ids) == line["token_ids"] for line in result.lines)
    assert max(len(one.plan.chunks) for one in of_kind(records, "step")) == 7


def test_what_is_answered_behind_an_unanswered_line_is_kept(tiny: Path, tmp_path: Path) -> None:
    """Stopped in the middle: whole lines only, in order, without the one that was not through."""
    source = write_lines(
        tmp_path / "in.jsonl", *({"prompt": "x", "max_tokens": n, "ignore_eos": True} for n in (200, 2, 150, 3))
    )

    class After:
        """Ctrl-C after some rounds."""

        rounds = 0

        @property
        def wanted(self) -> bool:
            self.rounds += 1
            return self.rounds > 20

    engine = build_engine(EngineSettings(model=str(tiny), threads=1))
    out = io.StringIO()
    with source.open("rb", buffering=0) as file:
        run = LineRun(engine, AnswerForms(engine, SamplingParams()), line_writer(out), {})
        run.work(LineReader(file.fileno()), After(), None)  # type: ignore[arg-type]
    assert [json.loads(line)["index"] for line in out.getvalue().splitlines()] == [1, 3]
    counts = engine.loop.stats()
    assert (counts.waiting, counts.running, counts.kv.held_blocks) == (0, 0, 0)


# -- processes of their own ---------------------------------------------------------------------------------------
def test_ctrl_c_keeps_whole_lines(tiny: Path, tmp_path: Path) -> None:
    line = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
    source, target = write_lines(tmp_path / "in.jsonl", *[line] * 20_000), tmp_path / "out.jsonl"
    process = spawn("run", "--input", source, "--output", target, "--model", tiny)
    until(lambda: target.exists() and target.stat().st_size > 3000)
    process.send_signal(signal.SIGINT)
    result = finished(process)
    assert result.code == 130, result.err
    assert "Traceback" not in result.err and result.err.endswith("Stopped; what was answered has been written.\n")
    assert "requests answered" in result.err
    lines = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert 0 < len(lines) < 20_000 and all(line["output_tokens"] == 200 for line in lines)


def test_ctrl_c_while_a_pipe_says_nothing(tiny: Path) -> None:
    process = spawn("run", "--input", "-", "--model", tiny)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b'{"prompt": "x", "max_tokens": 2}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["index"] == 0, "answered before the pipe ends"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    finished(process)


def test_lines_from_a_pipe_and_a_fifo(tiny: Path, tmp_path: Path) -> None:
    lines = b'{"prompt": "x", "max_tokens": 2}\n{"prompt": "caf\xe9"}'
    result = finished(spawn("run", "--input", "-", "--model", tiny), lines)
    assert result.code == 1 and [line["index"] for line in result.lines] == [0, 1]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = spawn("run", "--input", fifo, "--model", tiny)
    with fifo.open("wb") as file:
        file.write(lines)
    assert finished(process).out.count("\n") == 2


def test_the_reader_goes_away(tiny: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", *[{"prompt": "x", "max_tokens": 50, "ignore_eos": True}] * 3000)
    command = f'"$0" -m inflight.cli run --input "{source}" --model "{tiny}"'
    line = f"({command}; echo $? >&2) | head -1"
    done = subprocess.run(["sh", "-c", line, COMMAND[0]], capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout)["index"] == 0
    assert done.stderr == "141\n"


def until(met: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not met():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- the reader ---------------------------------------------------------------------------------------------------
def test_lines_come_with_their_numbers_however_the_pipe_cuts_them() -> None:
    out, into = os.pipe()
    reader = LineReader(out)
    assert reader.take(5, 0) == [] and not reader.ended
    for piece in (b"\xef\xbb\xbfon", b"e\n\n  \ntw", "ö\n".encode()[:1], "ö\n".encode()[1:]):
        os.write(into, piece)
    assert reader.take(1, 1) == [(1, "one")]
    assert reader.take(5, 1) == [(4, "twö")]
    os.write(into, b"thr\xff")
    assert reader.take(5, 0) == [] and not reader.ended
    os.close(into)
    assert reader.take(5, 1) == [(5, "thr\udcff")] and reader.ended
    assert reader.take(5, 1) == []
    os.close(out)


def test_long_lines_and_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("x" * 500_000 + "\n" + "\n".join(str(n) for n in range(50_000)))
    with path.open("rb", buffering=0) as file:
        reader = LineReader(file.fileno())
        taken = []
        while not reader.ended:
            taken += reader.take(64, 1)
    assert len(taken[0][1]) == 500_000
    assert taken[1:] == [(n + 2, str(n)) for n in range(50_000)]


def test_the_error_of_predicted_lengths_is_reported_where_a_policy_asks_the_predictor(
    inflight: Caller, tmp_path: Path
) -> None:
    line = {"prompt_token_ids": list(range(40)), "max_tokens": 30}
    source = write_lines(tmp_path / "in.jsonl", *({**line, "output_tokens": n} for n in (4, 17, 30)))
    result = inflight("run", "--input", source, "--policy", "sjf", "--predictor", "oracle")
    assert "oracle: output lengths off by 0% on average, 100% within twice, bias +0%, over 3 samples" in result.err
    result = inflight("run", "--input", source, "--policy", "sjf", "--json")
    found = json.loads(result.err)["predictions"]
    assert found["samples"] == 3 and found["relative_error"] > 0
    result = inflight("run", "--input", source, "--json")
    assert json.loads(result.err)["predictions"] is None
    assert "predictor" not in inflight("run", "--input", source).err
