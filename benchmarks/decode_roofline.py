"""Decode steps of a Qwen2.5-0.5B-shaped model against the machine's roofline, end to end.

Measures what a user gets: the time from one committed step to the next, with scheduling, sampling and Python in it.
Bandwidth and peak are probed right before and after each run, because both move on a shared machine; the share is the
ceiling of that run's own probes over its median step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.results import table, write_section
from benchmarks.shapes import QWEN25_05B, write_config
from inflight.api import LLM, SamplingParams
from inflight.execution.config import ModelConfig
from inflight.execution.ops import native
from inflight.execution.roofline import Machine, decode_ceiling
from inflight.records.schema import read_records

PROMPT, OUTPUT = 64, 48  # tokens


def probe(threads: int) -> Machine:
    return Machine(
        native.read_bandwidth_bytes_per_s(threads), {"bfloat16": native.peak_flops("bf16", threads), "float32": 0.0}
    )


def decode(llm: LLM, batch: int) -> None:
    prompts = [[(batch * 31 + i) * 7 + j for j in range(PROMPT)] for i in range(batch)]
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True))


def decode_steps(record: Path, first_step: int, batch: int) -> tuple[list[float], int]:
    """Seconds between commits of steps in which all rows decode, and the last step's number."""
    steps = [line for line in read_records(record) if line["kind"] == "step" and line["step"] >= first_step]
    gaps = [
        after["committed"] - before["committed"]
        for before, after in itertools.pairwise(steps)
        if all(step["features"]["tokens"] == step["features"]["samples"] == batch for step in (before, after))
    ]
    return gaps, steps[-1]["step"] + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    batches = [int(batch) for batch in arguments.batches.split(",")]
    runs: dict[int, list[dict[str, float]]] = {batch: [] for batch in batches}
    with tempfile.TemporaryDirectory() as folder:
        model = write_config(Path(folder) / "qwen2.5-0.5b-shape", QWEN25_05B)
        record = Path(folder) / "record.jsonl"
        config = ModelConfig.from_folder(model)
        llm = LLM(model, load_format="dummy", max_num_seqs=max(batches), max_model_len=2048, record=record)
        threads = int(llm.settings["threads"].value)
        decode(llm, 1)  # warm up
        next_step = decode_steps(record, 0, 1)[1]
        for _ in range(arguments.repeats):
            for batch in batches:
                before = probe(threads)
                decode(llm, batch)
                after = probe(threads)
                gaps, next_step = decode_steps(record, next_step, batch)
                machine = Machine(
                    (before.read_bytes_per_s + after.read_bytes_per_s) / 2,
                    {"bfloat16": (before.flops_per_s["bfloat16"] + after.flops_per_s["bfloat16"]) / 2},
                )
                ceiling = decode_ceiling(config, "bfloat16", machine, batch, PROMPT + OUTPUT // 2)
                step = statistics.median(gaps)
                runs[batch].append(
                    {
                        "step_ms": step * 1e3,
                        "ceiling_ms": ceiling.seconds * 1e3,
                        "share": ceiling.seconds / step,
                        "gb_per_s": machine.read_bytes_per_s / 1e9,
                        "gflop_per_s": machine.flops_per_s["bfloat16"] / 1e9,
                        "memory_bound": float(ceiling.bound_by == "memory"),
                    }
                )
                print(json.dumps({"batch": batch, **runs[batch][-1]}))
        llm.close()
    body = report(runs)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.decode_roofline --batches {arguments.batches} --repeats {arguments.repeats}"
        write_section("decode_roofline", "Decode against the roofline (Qwen2.5-0.5B shape, bf16)", command, body)


def report(runs: dict[int, list[dict[str, float]]]) -> str:
    def spread(batch: int, name: str, digits: int) -> str:
        values = sorted(run[name] for run in runs[batch])
        return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f} to {values[-1]:.{digits}f})"

    rows = []
    for batch in runs:
        memory = statistics.median(run["memory_bound"] for run in runs[batch]) > 0.5
        rows.append(
            [
                batch,
                spread(batch, "step_ms", 1),
                spread(batch, "ceiling_ms", 1),
                spread(batch, "share", 2),
                "memory" if memory else "compute",
                spread(batch, "gb_per_s", 1),
                spread(batch, "gflop_per_s", 0),
            ]
        )
    head = ["batch", "step, ms", "ceiling, ms", "share of the roofline", "bound by", "read GB/s", "bf16 GFLOP/s"]
    return "Medians over the repeats, least and greatest in brackets.\n\n" + table(head, rows)


if __name__ == "__main__":
    main()
