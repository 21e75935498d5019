"""MLPerf's LoadGen in the Server scenario, with the limits of its Llama-3.1-8B at p99: TTFT 2 s, TPOT 100 ms."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.judges.definitions import Definition, of_single_values, one_a_frame
from benchmarks.judges.judge import PACKAGES, Figures, Judge, Latency, Load, Target, read_json
from tests.foreign.environments import Environment

_SYSTEM = Path(__file__).with_name("loadgen_system.py")


class LoadGen(Judge):
    name = "loadgen"
    title = "MLPerf LoadGen, Server scenario"
    environment = Environment("judge_loadgen", PACKAGES / "loadgen")
    notes = (
        "Its TTFT counts from its schedule, ours from the request's first byte. Its percentiles are values of "
        "single requests, where ours lie between two: its p99 of fewer than 100 is the greatest. Its requests/s "
        "leave one out.",
    )

    def command(self, target: Target, load: Load, folder: Path) -> Sequence[str]:
        job = {
            "url": target.url,
            "model": target.model,
            "prompts": _prompts(target.tokenizer, load),
            "output_tokens": load.output_tokens,
            "queries": load.requests,
            "rate": load.rate,
            "folder": str(folder),
        }
        path = folder / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        return ["python", str(_SYSTEM), str(path)]

    def definition(self, target: Target, folder: Path) -> Definition:
        began = _scheduled(folder)
        return Definition(one_a_frame, True, of_single_values, began, left_out=1)

    def figures(self, folder: Path, output: str) -> Figures:
        summary = (folder / "mlperf_log_summary.txt").read_text(encoding="utf-8")
        errors = re.search(r"^errors: (\d+)", output, re.MULTILINE)

        def value(label: str) -> float:
            found = re.search(rf"^{re.escape(label)} *: ([\d.]+)$", summary, re.MULTILINE)
            assert found is not None, f"no {label!r} in {summary}"
            return float(found[1])

        def latency(mean: str, percentile: str) -> Latency:
            labels = (f"Mean {mean} (ns)", f"50.00 percentile {percentile} (ns)", f"99.00 percentile {percentile} (ns)")
            return Latency(*(value(label) / 1e9 for label in labels))

        failed = int(errors[1]) if errors else 0
        return Figures(
            requests=int(value("max_query_count")) - failed,
            failed=failed,
            requests_per_s=value("Completed samples per second"),
            output_tokens_per_s=value("Completed tokens per second"),
            ttft=latency("First Token latency", "first token latency"),
            tpot=latency("Time per Output Token", "time to output token"),
        )


def _scheduled(folder: Path) -> dict[str, float]:
    """Return when each query was to be sent, by the id of its answer; s of the machine's monotonic clock.

    LoadGen's trace has its schedule, and how late it was; the system under test has when it was called.
    """
    trace = (folder / "mlperf_log_trace.json").read_text(encoding="utf-8")
    line = r'"name":"Sample",[^\n]*"ts":([\d.]+),"args":{"sample_seq":(\d+),[^\n]*"issue_start_ns":(\d+)'
    due = {int(number): (float(at) / 1e6, int(late) / 1e9) for at, number, late in re.findall(line, trace)}
    issued = read_json(folder / "issued.json")
    zero = min(one["at"] - sum(due[number]) for number, one in enumerate(issued))  # of LoadGen's clock
    return {one["id"].partition("-")[2]: zero + due[number][0] for number, one in enumerate(issued)}


def _prompts(tokenizer: Path, load: Load) -> list[list[int]]:
    """Return prompts of random tokens, none of them special."""
    content = read_json(tokenizer / "tokenizer.json")
    special = {token["id"] for token in content["added_tokens"]}
    ids = sorted(set(content["model"]["vocab"].values()) - special)
    draw = random.Random(0)
    return [draw.choices(ids, k=load.input_tokens) for _ in range(load.requests)]
