"""`inflight bench` as people call it: against a real server, and against what is none."""

from __future__ import annotations

import csv
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.scripted import FakeSend, ScriptedServer
from bench.test_result import ABOUT
from bench.test_run import NoBodies
from server.conftest import Server

from inflight.bench.client_types import Target
from inflight.bench.offering import Offer
from inflight.bench.run import Warmup, measure
from inflight.cli import call
from inflight.cli.bench import _Measurement
from inflight.cli.bench_options import OutcomeOptions
from inflight.metrics.observation import Targets
from inflight.workload.arrivals import Constant
from inflight.workload.classes import TrafficClass
from inflight.workload.lengths import Fixed

# Shared machines make any client late now and then; these tests are about what is sent and printed, not about times.
BELIEVED_OR_NOT = (0, 1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server("--admission", "off").ready()
    yield running
    running.stop()


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "inflight.cli", "bench", *arguments], capture_output=True, text=True, timeout=120
    )


def mistake(capture: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The output for it, in this process: nothing is measured, so that no process of its own is needed."""
    code = call(["bench", *arguments])
    err = capture.readouterr().err
    assert code in (1, 2), err
    assert "Traceback" not in err
    return err


def record(*arguments: str) -> dict:
    done = bench(*arguments, "--json")
    assert done.returncode in BELIEVED_OR_NOT, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_without_options_it_is_a_short_closed_loop(server):
    done = bench(server.url)
    assert done.returncode in BELIEVED_OR_NOT, done.stderr
    for word in ("closed loop of 8", "throughput", "TTFT", "TPOT", "ITL", "E2E", "by Little's law"):
        assert word in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_lengths_are_those_that_were_asked(server, endpoint):
    found = record(
        server.url, "--endpoint", endpoint, "--requests", "12", "--concurrency", "4", "--warmup", "0",
        "--input-tokens", "uniform:30-90", "--output-tokens", "uniform:2-20", "--save-requests",
    )  # fmt: skip
    rows = found["requests"]
    assert len(rows) == 12
    assert all(30 <= row["prompt_tokens"] <= 90 and 2 <= row["output_tokens"] <= 20 for row in rows)
    assert not [note for note in found["notes"] if "another length" in note]
    assert found["target"]["lengths_forced_by"] == "output_tokens"
    assert all(len(row["token_times_s"]) == row["output_tokens"] for row in rows)


@pytest.mark.wide
def test_a_closed_loop_of_a_given_time_ends_by_itself(server):
    found = record(
        server.url, "--concurrency", "2", "--duration", "1.5", "--input-tokens", "16", "--output-tokens", "8",
        "--warmup", "0", "--save-requests",
    )  # fmt: skip
    assert found["partial"] is False
    assert {row["outcome"] for row in found["requests"]} == {"completed"}
    assert 0.5 < max(row["intended_s"] for row in found["requests"]) < 1.5
    assert len(found["requests"]) == found["summary"]["offered"] < found["workload"]["requests"]


def test_files_of_all_kinds(server, tmp_path):
    paths = [tmp_path / name for name in ("result.json", "requests.csv", "vllm.json")]
    done = bench(
        server.url, "--rate", "40", "--requests", "20", "--input-tokens", "20", "--output-tokens", "4",
        "--output", str(paths[0]), "--csv", str(paths[1]), "--vllm-json", str(paths[2]),
        "--slo", "ttft=60000", "--slo", "e2e=60000",
    )  # fmt: skip
    assert done.returncode in BELIEVED_OR_NOT, done.stderr
    assert "100.0% of the offered met TTFT ≤ 6e+04 ms, E2E ≤ 6e+04 ms" in done.stderr
    result = json.loads(paths[0].read_text())
    assert result["settings"]["rate"] == 40.0
    assert result["summary"]["attainment"] == 1.0
    assert len(list(csv.DictReader(paths[1].open()))) == 20
    assert json.loads(paths[2].read_text())["request_rate"] == 40.0


def test_conversations_find_what_came_before_cached(server):
    found = record(
        server.url, "--turns", "3", "--requests", "9", "--concurrency", "3", "--input-tokens", "64",
        "--output-tokens", "8", "--warmup", "0", "--save-requests",
    )  # fmt: skip
    lengths = sorted(row["prompt_tokens"] for row in found["requests"])
    assert lengths == [64] * 3 + [136] * 3 + [208] * 3
    cached = {row["prompt_tokens"]: row["cached_tokens"] for row in found["requests"]}
    assert cached[136] >= 48 and cached[208] >= 128


@pytest.mark.wide
def test_prompts_of_a_second_run_are_not_cached(server):
    arguments = (server.url, "--requests", "6", "--concurrency", "2", "--input-tokens", "80", "--output-tokens", "2")
    first, second = record(*arguments), record(*arguments)
    assert first["summary"]["cached_tokens"] == second["summary"]["cached_tokens"] == 0
    assert first["settings"]["prompt_seed"] != second["settings"]["prompt_seed"]
    again = record(*arguments, "--prompt-seed", str(second["settings"]["prompt_seed"]))
    assert again["summary"]["cached_tokens"] > 0


def test_shared_prefixes_are_cached(server):
    found = record(
        server.url, "--requests", "12", "--concurrency", "1", "--prefix-tokens", "96", "--prefix-groups", "2",
        "--input-tokens", "16", "--output-tokens", "2", "--warmup", "0",
    )  # fmt: skip
    assert found["summary"]["prompt_tokens"] == 12 * 112
    assert found["summary"]["cached_tokens"] == 10 * 96


def test_classes_have_their_own_summaries(server, tmp_path):
    path = tmp_path / "classes.toml"
    path.write_text(
        '[classes.chat]\nshare = 1.0\ninput = 20\noutput = 4\nttft_ms = 60000\ntenant = "acme"\n'
        '[classes.jobs]\nshare = 1.0\ninput = 40\noutput = 2\nlane = "batch"\n'
    )
    found = record(server.url, "--classes", str(path), "--requests", "40", "--concurrency", "4", "--warmup", "0")
    assert set(found["by_class"]) == {"chat", "jobs"}
    assert sum(one["offered"] for one in found["by_class"].values()) == found["summary"]["offered"]
    assert set(found["by_lane"]) == {"batch"} and set(found["by_tenant"]) == {"acme"}
    assert server.metric("inflight_requests_accepted_total", lane="batch") == found["by_class"]["jobs"]["offered"]


@pytest.mark.wide
def test_a_trace_is_sent_as_it_is(server, tmp_path):
    path = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:00:{second:02d}.0000000,{20 + second},3" for second in range(30)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    found = record(server.url, "--trace", str(path), "--speed", "20", "--warmup", "0", "--save-requests")
    assert sorted(row["prompt_tokens"] for row in found["requests"]) == [20 + second for second in range(30)]
    gaps = [later["intended_s"] - one["intended_s"] for one, later in itertools.pairwise(found["requests"])]
    assert all(gap == pytest.approx(0.05) for gap in gaps)


@pytest.mark.wide
def test_a_trace_of_texts_is_sent_in_its_words(server, tmp_path):
    path = tmp_path / "share.json"
    turns = [
        ("human", "What is a lane?"),
        ("gpt", "A queue."),
        ("human", "And a row?"),
        ("gpt", "A place in the batch."),
    ]
    said = [{"from": who, "value": text} for who, text in turns]
    path.write_text(json.dumps([{"id": str(k), "conversations": said} for k in range(4)]))
    found = record(
        server.url, "--trace", str(path), "--turns", "2", "--endpoint", "chat", "--warmup", "0", "--save-requests"
    )
    assert len(found["requests"]) == 8
    assert found["summary"]["completed"] == 8
    assert found["workload"]["closed"] is True


def test_a_sweep_is_a_curve(server, tmp_path):
    path = tmp_path / "curve.json"
    done = bench(
        server.url, "--sweep", "1,4", "--by", "concurrency", "--requests", "12", "--input-tokens", "16",
        "--output-tokens", "4", "--output", str(path),
    )  # fmt: skip
    assert done.returncode in BELIEVED_OR_NOT, done.stderr
    curve = json.loads(path.read_text())
    assert (curve["kind"], curve["by"]) == ("sweep", "concurrency")
    assert [point["value"] for point in curve["points"]] == [1.0, 4.0]
    assert [point["result"]["workload"]["concurrency"] for point in curve["points"]] == [1, 4]


@pytest.mark.wide
def test_a_capacity_that_no_load_reaches_is_said(server, tmp_path):
    path = tmp_path / "capacity.json"
    done = bench(
        server.url, "--find-capacity", "--by", "concurrency", "--slo", "e2e=0.001", "--requests", "6",
        "--input-tokens", "16", "--output-tokens", "4", "--output", str(path),
    )  # fmt: skip
    assert done.returncode == 1
    assert "no load was found with E2E ≤ 0.001 ms" in done.stderr
    found = json.loads(path.read_text())
    assert found["kind"] == "capacity" and found["capacity"] is None


def test_an_interrupted_run_writes_what_it_has(server, tmp_path):
    path = tmp_path / "partial.json"
    before = server.metric("inflight_requests_finished_total")
    process = subprocess.Popen(
        [sys.executable, "-m", "inflight.cli", "bench", server.url, "--rate", "20", "--duration", "100",
         "--input-tokens", "16", "--output-tokens", "2", "--output", str(path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.settled(lambda: server.metric("inflight_requests_finished_total") > before + 20)
    process.send_signal(signal.SIGINT)
    _, out = process.communicate(timeout=60)
    assert process.returncode == 130, out
    found = json.loads(path.read_text())
    assert found["partial"] is True
    assert 0 < found["summary"]["offered"] < 2000
    assert "Stopped" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["http://127.0.0.1:9"], "127.0.0.1:9"),
        (["--rate", "1", "--arrivals", "poisson:2"], "--rate 1 and --arrivals poisson:2"),
        (["--find-capacity"], "--slo ttft=500"),
        (["--find-capacity", "--slo", "ttft=1", "--sweep", "1"], "two measurements"),
        (["--sweep", "1,x"], "give numbers above 0"),
        (["--slo", "speed=4"], "give ttft, tpot, itl or e2e"),
        (["--warmup", "soon"], "give requests (20), seconds (5s)"),
        (["--body", "[1]"], "give an object"),
        (["--output", "/nowhere/at/all.json"], "create it first"),
        (["--sweep", "1,2", "--csv", "x.csv"], "has room for one run"),
        (["--share", "2"], "--share is 2"),
        (["--by", "concurrency"], "--by says what"),
        (["--sweep", "1", "--by", "concurrency", "--rate", "3"], "--rate has no effect"),
        (["--save-requests"], "give --output or --json"),
        (["a:1", "--url", "b:2"], "Two addresses"),
    ],
)
def test_mistakes_are_reported_before_anything_is_sent(capfd, arguments, sentence):
    assert sentence in mistake(capfd, *arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "gpt"], "does not serve the model 'gpt'; it serves built-in"),
        (["--input-tokens", "uniform:9-4"], "give the smaller one first"),
        (["--arrivals", "sometimes"], "Arrivals 'sometimes' are of no known form"),
        (["--prefix-groups", "3"], "give --prefix-tokens"),
        (["--speed", "3"], "give one with --trace"),
        (["--think", "3"], "give --turns"),
        (["--input-tokens", "5000", "--output-tokens", "1"], "longer than the model's 1,024 tokens"),
        (["--tokenizer", "/tmp", "--prompt-text"], "has no tokenizer.json"),
        (["--body", '{"nonsense": 1}'], "'nonsense' is unknown to the server"),
        (["--concurrency", "0"], "--concurrency is 0"),
    ],
)
def test_mistakes_that_the_server_shows_are_reported(capfd, server, arguments, sentence):
    assert sentence in mistake(capfd, server.url, *arguments)


def test_a_foreign_server_without_extras(tmp_path: Path):
    refuses = frozenset({"output_tokens", "continuous_usage_stats", "min_tokens", "return_token_ids"})
    with ScriptedServer(refuses=refuses, takes_ids=False) as foreign:
        done = bench(foreign.url, "--requests", "6", "--concurrency", "2", "--output-tokens", "5", "--json")
    assert done.returncode in BELIEVED_OR_NOT, done.stderr
    found = json.loads(done.stdout)
    assert found["target"]["lengths_forced_by"] == "ignore_eos"
    assert found["summary"]["completed"] > 0
    assert any("does not take output_tokens" in note for note in found["notes"])
    assert all(isinstance(body["prompt"], str) for body in foreign.bodies[-6:])


class OneWorker:
    """A runner whose server answers ten requests a second, one after the other."""

    progress = None

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run(self, workload):
        self.sizes.append(len(workload.entries))
        return measure(workload, FakeSend(seconds=0.1)(workload, Target(""), NoBodies()), Warmup())


def test_a_search_begins_near_the_capacity_and_says_how_much_of_it_is_left(capsys):
    kind = TrafficClass(name="", share=1.0, input=Fixed(10), output=Fixed(4))
    offer = Offer([kind], arrivals=Constant(1.0), targets=Targets(e2e=0.5))
    runner = OneWorker()
    work = _Measurement(runner, offer, ABOUT, OutcomeOptions(find_capacity=True))
    assert work.capacity("rate", work.estimate(), 0.99) == 0
    err = capsys.readouterr().err
    assert "64 requests, 16 at a time, came to 10" in err and "the search begins at 7" in err
    probes = [line for line in err.splitlines() if line.startswith("probe ")]
    assert "at 7 requests/s, 30 s; how many follow is known when" in probes[0]
    assert "at most 0 more after it" in probes[-1] and "at most 3 more after it, 90 s" in err
    assert runner.sizes[0] == 64 and len(probes) == len(runner.sizes) - 1 <= 7
