"""How fast trace files are read: a million synthetic rows of every format, from the file to entries, on one core.

Rows have the fields of the real files, and lengths drawn from a lognormal distribution. The time is that of `load`
alone, the format detected by itself; the files lie in a temporary folder that is removed.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from benchmarks.comparison import log_line, options, publish, spread
from benchmarks.results import table
from inflight.workload.lengths import Lognormal
from inflight.workload.traces import load

Row = Callable[[int, int, int], str]  # number, prompt tokens, output tokens → line
_START = datetime(2024, 5, 10, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class File:
    """One file to write and read. rows: what they hold, for the reader of the table. ends: around all of them."""

    name: str
    rows: str
    row: Row
    prompt: Lognormal
    head: str = ""
    between: str = "\n"
    tail: str = "\n"


def azure(number: int, prompt: int, output: int, digits: int) -> str:
    stamp = (_START + timedelta(microseconds=number * 13_700)).strftime("%Y-%m-%d %H:%M:%S.%f")
    text = stamp + "0" if digits == 7 else (stamp if number % 100 else stamp[:19]) + "+00:00"
    return f"{text},{prompt},{output}"


def burstgpt(number: int, prompt: int, output: int, session: bool) -> str:
    extra = f"{number // 3},{output * 0.02:.2f}," if session else ""
    answered = output if number % 40 else 0
    return f"{number * 3.25},{extra}ChatGPT,{prompt},{answered},{prompt + answered},Conversation log"


def hashed(number: int, prompt: int, output: int, block: int) -> str:
    blocks = -(-prompt // block)
    shared = min(blocks, 3)
    ids = [number % 50 * 4 + place for place in range(shared)]
    ids += [1000 + number * 400 + place for place in range(blocks - shared)]
    row = {"timestamp": number * 275, "input_length": prompt, "output_length": output, "hash_ids": ids}
    if block == 16:
        parent = number - 2 if number % 3 == 2 else -1
        row = {"chat_id": number, "parent_chat_id": parent, "type": "text", "turn": 1} | row
        row["timestamp"] = number * 0.025
    return json.dumps(row)


def plain(number: int, prompt: int, output: int) -> str:
    return json.dumps({"timestamp": number * 0.1, "input_length": prompt, "output_length": output})


def text(number: int, prompt: int, output: int) -> str:
    return json.dumps({"prompt": f"{number}: " + "word " * prompt, "output_tokens": output})


def conversation(number: int, prompt: int, output: int) -> str:
    said = [("human", f"{number}: " + "word " * prompt), ("gpt", "word " * output)]
    return json.dumps({"id": str(number), "conversations": [{"from": who, "value": what} for who, what in said]})


def record(number: int, prompt: int, output: int) -> str:
    known = {
        "kind": "request", "request_id": str(number), "lane": "interactive", "arrival": number * 0.1,
        "prompt_token_ids": [(number * 7 + place) % 32_000 for place in range(prompt)],
        "params": {"temperature": 0, "max_tokens": 500}, "seed": number, "cache_salt": "", "tenant": "", "priority": 0,
        "slo": {"ttft": None, "itl": None},
        "samples": [{"sequence": number, "token_ids": list(range(output)), "finish_reason": "length"}],
        "timings": {"queue_ms": 0.5, "prefill_ms": 11.5, "decode_ms": 4.25, "total_ms": 16.25},
    }  # fmt: skip
    return json.dumps(known, separators=(",", ":"))


_LONG, _SHORT = Lognormal(1000, 8000), Lognormal(40, 200)
_RECORD_HEAD = '{"kind":"header","version":1,"created":"2026-01-01T00:00:00+00:00","settings":{},"capacity":{}}\n'
_AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
_BURST_HEAD = "Timestamp,{}Model,Request tokens,Response tokens,Total tokens,Log Type\n"
FILES = (
    File("azure", "2023", partial(azure, digits=7), _LONG, _AZURE_HEAD),
    File("azure", "2024, mixed precision", partial(azure, digits=6), _LONG, _AZURE_HEAD),
    File("burstgpt", "v1.1", partial(burstgpt, session=False), _LONG, _BURST_HEAD.format("")),
    File("burstgpt", "v1.2", partial(burstgpt, session=True), _LONG, _BURST_HEAD.format("Session ID,Elapsed time,")),
    File("mooncake", "p50 4,000 tokens of prompt", partial(hashed, block=512), Lognormal(4000, 30_000)),
    File("bailian", "p50 250 tokens of prompt", partial(hashed, block=16), Lognormal(250, 1000)),
    File("custom", "lengths, JSON lines", plain, _LONG),
    File("custom", "lengths, CSV", lambda *row: f"{row[0] * 0.1:.2f},{row[1]},{row[2]}", _LONG,
         "timestamp,input_length,output_length\n"),
    File("custom", "prompts of p50 40 words", text, _SHORT),
    File("sharegpt", "first turns of p50 40 words", conversation, _SHORT, "[", ",\n", "]"),
    File("record", "p50 40 token ids of prompt and of output", record, _SHORT, _RECORD_HEAD),
)  # fmt: skip


def lines(file: File, rows: int) -> Iterator[str]:
    rng, output = random.Random(0), Lognormal(40, 200)
    yield file.head
    for number in range(rows):
        yield file.row(number, file.prompt.draw(rng), output.draw(rng))
        yield file.between if number < rows - 1 else file.tail


def measured(file: File, rows: int, repeats: int, folder: Path) -> list[object]:
    path = folder / "trace"
    with path.open("w", encoding="utf-8") as written:
        written.writelines(lines(file, rows))
    size, found, kept = path.stat().st_size, [], 0
    for _ in range(repeats):
        start = time.process_time()
        trace = load(path)
        found.append(time.process_time() - start)
        if trace.format != file.name or trace.rows != rows:
            raise RuntimeError(f"{trace.rows} rows of {trace.format} were found in {rows} of {file.name}.")
        kept = len(trace.entries)
        del trace
    return [
        file.name,
        file.rows,
        f"{size / 2**20:,.0f}",
        f"{kept:,}",
        spread(found),
        spread(rows / s / 1000 for s in found),
    ]


def main() -> None:
    parser = options(__doc__, repeats=2)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--format", help="only this one")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for file in FILES:
            if arguments.format in (None, file.name):
                log_line(f"{file.name}, {file.rows}")
                found.append(measured(file, arguments.rows, arguments.repeats, Path(folder)))
    head = ("format", "rows hold", "MiB", "entries", "CPU seconds", "thousand rows per CPU second")
    body = f"{arguments.rows:,} rows each; {arguments.repeats} readings, median (least to greatest).\n\n"
    publish("trace_loading", "Reading trace files", body + table(head, found), arguments.write)


if __name__ == "__main__":
    main()
