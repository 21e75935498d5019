"""examples/: each runs as it stands, and does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from adapters import write_adapter
from server.conftest import Server

import inflight

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
BUILT_IN = Path(inflight.__file__).parent / "builtin_model"


def run(*arguments: object, **env: str) -> str:
    """Return an example's output."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **env},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def simulated(*arguments: str) -> str:
    machine = ("--model", "llama-3-8b", "--hardware", "a100-80", "--rate", "4", "--duration", "20")
    traffic = ("--input-tokens", "lognormal:300:6000")
    return run("-m", "inflight.cli", "simulate", *machine, *traffic, *arguments, PYTHONPATH=str(EXAMPLES))


def itl_p99(result: str) -> float:
    [line] = re.findall(r"^ *ITL .*", result, re.MULTILINE) or re.findall(r"^ *TPOT .*", result, re.MULTILINE)
    return float(line.split()[4].replace(",", ""))


def test_the_client_streams_while_its_background_work_waits() -> None:
    server = Server().ready()
    try:
        out = run(EXAMPLES / "ask_a_server.py", server.url)
        assert "Continuous batching decides anew" in out
        assert len(re.findall(r"\? .*… \(\d+ ms in the queue, \d+ ms in all\)", out)) == 4
        assert server.metric("inflight_requests_finished_total", lane="batch") == 4
    finally:
        server.stop()


def test_prompts_are_computed_by_the_other_engine_and_answers_are_the_same() -> None:
    out = run(EXAMPLES / "prefill_engines.py")
    handed = re.findall(r"(\d+) of (\d+) tokens were computed by the other engine", out)
    assert len(handed) == 3 and all(0 < int(prompt) - int(taken) <= 16 for taken, prompt in handed)
    assert "One engine says the same." in out


def test_the_policy_is_taken(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "One", "max_tokens": 2}\n{"prompt": "Two and three", "max_tokens": 2}\n')
    asked = ("--policy", "short_prompts_first:ShortPromptsFirst", "--input", str(prompts))
    out = run("-m", "inflight.cli", "run", *asked, PYTHONPATH=str(EXAMPLES))
    assert out.count('"finish_reason"') == 2 and "first come" not in out, "fcfs would have taken over"


@pytest.mark.wide
def test_the_strategy_makes_gaps_shorter() -> None:
    gentle = simulated("--strategy", "gentle_chunks:GentleChunks")
    assert "takes over" not in gentle
    assert itl_p99(gentle) < itl_p99(simulated())


def test_adapters_answer_in_one_batch_each_in_its_way(tmp_path: Path) -> None:
    adapters = [f"{name}={write_adapter(tmp_path / name, BUILT_IN, seed)}" for seed, name in enumerate(("one", "two"))]
    out = dict(re.findall(r"^(\w+): (.*)$", run(EXAMPLES / "adapters.py", BUILT_IN, *adapters), re.MULTILINE))
    assert out.keys() == {"without", "one", "two"} and len(set(out.values())) == 3
    assert len(out["without"]) > 20


@pytest.mark.wide
def test_planning_shows_where_the_queue_begins_to_grow() -> None:
    out = run(EXAMPLES / "how_many_fit.py")
    assert "128 KiB a token" in out and "TTFT p99" in out and "grows without end" in out


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda one: one.name)
def test_an_example_stands_on_the_page(path: Path) -> None:
    assert f"| `{path.name}` |" in (EXAMPLES / "README.md").read_text(encoding="utf-8")
