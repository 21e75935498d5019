"""`vllm bench serve`, of vLLM's CPU wheel: random prompts, arrivals of a trace, and prompts that share prefixes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.judges.definitions import Definition, one_a_frame
from benchmarks.judges.judge import PACKAGES, Figures, Judge, Latency, Load, Target, read_json
from tests.foreign.environments import Environment

_BLOCK = 16  # tokens that one hash of a trace stands for
_PREFIXES = 4


class VLLMBench(Judge):
    """dataset: as `--dataset-name`."""

    environment = Environment("judge_vllm", PACKAGES / "vllm")
    variables = MappingProxyType({"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"})

    def __init__(self, dataset: str):
        self._dataset = dataset
        self.name = f"vllm-{dataset.replace('_', '-')}"
        self.title = f"vllm bench serve --dataset-name {dataset}"

    def command(self, target: Target, load: Load, folder: Path) -> Sequence[str]:
        return [
            "vllm",
            *("bench", "serve", "--backend", "openai", "--base-url", target.url, "--disable-tqdm"),
            *("--model", target.model, "--tokenizer", str(target.tokenizer), "--temperature", "0"),
            *("--num-prompts", str(load.requests), "--percentile-metrics", "ttft,tpot,itl,e2el"),
            *("--metric-percentiles", "50,99", "--dataset-name", self._dataset, *self._traffic(load, folder)),
            *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "vllm.json"),
        ]

    def _traffic(self, load: Load, folder: Path) -> Sequence[str]:
        if self._dataset == "timed_trace":
            trace = folder / "trace.jsonl"
            trace.write_text("".join(f"{json.dumps(line)}\n" for line in _trace(load)), encoding="utf-8")
            return ["--dataset-path", str(trace), "--timed-trace-chunk-hash-size", str(_BLOCK)]
        closed = ("--request-rate", "inf", "--max-concurrency", str(load.concurrency), "--ignore-eos")
        if self._dataset == "random":
            lengths = ("--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens))
            return [*closed, *lengths, "--random-range-ratio", "0"]
        half = str(load.input_tokens // 2)
        return [
            *closed,
            *("--prefix-repetition-prefix-len", half, "--prefix-repetition-suffix-len", half),
            *("--prefix-repetition-num-prefixes", str(_PREFIXES)),
            *("--prefix-repetition-output-len", str(load.output_tokens)),
        ]

    def definition(self, target: Target, folder: Path) -> Definition:
        return Definition(one_a_frame)

    def figures(self, folder: Path, output: str) -> Figures:
        found = read_json(folder / "vllm.json")

        def latency(metric: str) -> Latency:
            return Latency.of_ms(*(found[f"{which}_{metric}_ms"] for which in ("mean", "median", "p99")))

        return Figures(
            requests=found["completed"],
            failed=found["failed"],
            output_tokens=found["total_output_tokens"],
            input_tokens=found["total_input_tokens"],
            requests_per_s=found["request_throughput"],
            output_tokens_per_s=found["output_throughput"],
            ttft=latency("ttft"),
            tpot=latency("tpot"),
            itl=latency("itl"),
        )


def _trace(load: Load) -> list[dict[str, object]]:
    """Return Poisson arrivals, the first at once, of prompts that share nothing."""
    draw, at, lines = random.Random(0), 0.0, []
    blocks = -(-load.input_tokens // _BLOCK)
    for index in range(load.requests):
        hashes = list(range(index * blocks, (index + 1) * blocks))
        lengths = {"input_length": load.input_tokens, "output_length": load.output_tokens}
        lines.append({"timestamp": round(at, 3), "hash_ids": hashes, **lengths})
        at += draw.expovariate(load.rate)
    return lines
