"""A record of so many steps, written by the recorder itself, and what it takes to show it again.

The recorder receives steps that a small engine might have computed: rows that decode, a prompt now and then, blocks
that are taken and given up. So a record of a million steps takes minutes to write, and none of it is held. Then
`inflight report --live` is started with it, in a process of its own, and asked as a browser asks: `first` is the time
until the first frame has come, `whole` until the last, `cpu` what the process took itself; memory is what it has of the
machine's at most. Before the first frame the file is read once for its requests (`live.record_index`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.results import table, write_section
from inflight.core.types.events import Event, Finish, FinishedEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest, StepResult
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.core.types.timings import Timings
from inflight.engine.recorder import Recorder, open_record

ROWS, BLOCK_SIZE, PROMPT, OUTPUT, STEP_SECONDS = 8, 16, 64, 160, 0.02
BLOCKS_OF_ROW = -(-(PROMPT + OUTPUT) // BLOCK_SIZE) + 2


class _Row:
    """Keep the request that a row computes, and how far it is."""

    def __init__(self, number: int, blocks: list[int], at: float):
        self.number, self.blocks, self.came = number, blocks, at
        self.tokens = 0
        self.request = Request(
            request_id=f"r{number}",
            prompt_token_ids=tuple(range(PROMPT)),
            params=SamplingParams(max_tokens=OUTPUT),
            lane="interactive",
            arrival=at,
        )

    @property
    def is_done(self) -> bool:
        return self.tokens >= PROMPT + OUTPUT - 1  # the prompt brings the first


def write_record(path: Path, steps: int, num_rows: int = ROWS, step_seconds: float = STEP_SECONDS) -> Path:
    """All rows are busy; each request's prompt is one chunk, and its answer a token a step."""
    num_blocks = num_rows * BLOCKS_OF_ROW
    capacity = Capacity(num_blocks, BLOCK_SIZE, num_rows, 1024, 1000)
    settings = {"strategy": {"value": "chunked", "reason": "made up"}, "prefix_caching": {"value": False, "reason": ""}}
    recorder = Recorder(open_record(path), settings, capacity)
    free, rows, number = list(range(num_blocks - 1, -1, -1)), list[_Row | None](), 0
    rows += [None] * num_rows
    freed: list[int] = []
    for step in range(steps):
        at = step * step_seconds
        new_requests, chunks = [], []
        for row, held in enumerate(rows):
            if held is None and (step + row) % 3 == 0 and (step > row or row < ROWS):
                held = rows[row] = _Row(number, [], max(0.0, at - 0.01 * (number % 7)))
                number += 1
                recorder.added(held.request, at)
                params, seed = held.request.params, held.request.seed
                new_requests.append(NewRequest(row, held.request.prompt_token_ids, PROMPT, params, seed, 0))
            if held is not None:
                chunks.append(_chunk(held, row, free))
        plan = BatchPlan(step, tuple(chunks), tuple(new_requests), tuple(freed))
        recorder.planned(plan)
        recorder.step(plan, StepResult(step, (), step_seconds * 0.9), at, at + step_seconds)
        freed = [row for row, held in enumerate(rows) if held is not None and held.is_done]
        recorder.events(list(_events(rows, freed, at + step_seconds)), at + step_seconds)
        for row in freed:
            held = rows[row]
            assert held is not None
            free += held.blocks
            rows[row] = None
    recorder.close()
    return path


def _chunk(held: _Row, row: int, free: list[int]) -> Chunk:
    start, length = held.tokens, PROMPT if held.tokens == 0 else 1
    held.tokens += length
    needed = -(-held.tokens // BLOCK_SIZE) - len(held.blocks)
    new = [free.pop() for _ in range(needed)]
    held.blocks += new
    return Chunk(held.number, row, start, length, tuple(new), 1)


def _events(rows: list[_Row | None], ended: list[int], now: float) -> list[Event]:
    events: list[Event] = []
    for held in rows:
        if held is not None:
            events.append(TokensEvent(held.request.request_id, 0, (7,), None, None))
    for row in ended:
        held = rows[row]
        assert held is not None
        total = (now - held.came) * 1e3
        timings = Timings(
            0.0, 20.0, total - 20.0, 0.0, 0.0, total, 20.0, 0, 0, 0, None, None, "interactive", started_ms=0.0
        )
        events.append(FinishedEvent(held.request.request_id, (Finish("length"),), timings))
    return events


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) / 1e3 if found else 0.0


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shown(path: Path) -> dict[str, float]:
    """By a server of its own, asked once for all frames."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "inflight.cli", "report", "--live", str(path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(one for one in process.stderr if "http://" in one)
        url = re.search(r"http://\S+", line)
        assert url is not None
        ready = time.perf_counter() - began
        found: dict[str, float] = {"ready": ready}
        frames = size = 0
        with urllib.request.urlopen(f"{url[0]}/frames/0", timeout=3600) as answer:
            for data in answer:
                size += len(data)
                if b'"type":"frame"' in data[:20]:
                    frames += 1
                    found.setdefault("first", time.perf_counter() - began)
        return found | {
            "whole": time.perf_counter() - began,
            "frames": frames,
            "sent_mb": size / 1e6,
            "peak_mb": _peak_mb(process.pid),
            "cpu": _cpu_seconds(process.pid),
        }
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--write", action="store_true", help="into docs/results.md")
    given = parser.parse_args()
    rows: list[list[Any]] = []
    for steps in given.steps:
        with tempfile.TemporaryDirectory() as folder:
            path = write_record(Path(folder) / "long.jsonl", steps)
            size = os.path.getsize(path) / 1e6
            one = shown(path)
        print(json.dumps({"steps": steps, "mb": size, **one}), flush=True)
        counts = (f"{steps:,}", f"{size:,.0f}", f"{one['frames']:.0f}", f"{one['sent_mb']:.1f}")
        rows.append(
            [*counts, *(f"{one[key]:.1f}" for key in ("ready", "first", "whole", "cpu")), f"{one['peak_mb']:.0f}"]
        )
    head = (
        "steps",
        "file, MB",
        "frames",
        "sent, MB",
        "address printed, s",
        "first frame",
        "all frames",
        "peak memory, MB",
    )
    body = f"A record of {ROWS} busy rows, shown by `inflight report --live`.\n\n" + table(head, rows)
    print(body)
    if given.write:
        write_section("long_record", "Showing long records again", "python -m benchmarks.long_record", body)


if __name__ == "__main__":
    main()
