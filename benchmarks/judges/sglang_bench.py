"""SGLang's load client, `bench_serving.py`, without its engine: Poisson arrivals of streamed completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.judges.definitions import Definition
from benchmarks.judges.judge import PACKAGES, Figures, Judge, Latency, Load, Target
from tests.foreign.environments import Environment


class SGLangBench(Judge):
    name = "sglang"
    title = "sglang bench_serving --backend vllm"
    environment = Environment("judge_sglang", PACKAGES / "sglang")
    notes = (
        "It requests no usage: it counts as many tokens as it asked for, and its TPOT ends with the stream's end.",
    )

    def command(self, target: Target, load: Load, folder: Path) -> Sequence[str]:
        lengths = ("--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens))
        return [
            "python",
            *("-P", str(self._script()), "--backend", "vllm", "--base-url", target.url),
            *("--model", target.model, "--tokenizer", str(target.tokenizer), "--disable-tqdm"),
            *("--dataset-name", "random-ids", *lengths, "--random-range-ratio", "1", "--warmup-requests", "0"),
            *("--num-prompts", str(load.requests), "--request-rate", f"{load.rate:g}"),
            *("--output-file", str(folder / "sglang.jsonl")),
        ]

    def _script(self) -> Path:
        """Return the file of the client: importing it as a module would import the engine."""
        found: Path
        (found,) = self.environment.root.glob("lib/python*/site-packages/sglang/bench_serving.py")
        return found

    def definition(self, target: Target, folder: Path) -> Definition:
        return Definition(to_the_end=True)

    def figures(self, folder: Path, output: str) -> Figures:
        found = json.loads((folder / "sglang.jsonl").read_text(encoding="utf-8").splitlines()[-1])

        def latency(metric: str) -> Latency:
            return Latency.of_ms(*(found[f"{which}_{metric}_ms"] for which in ("mean", "median", "p99")))

        return Figures(
            requests=found["completed"],
            failed=0,
            output_tokens=found["total_output_tokens"],
            requests_per_s=found["request_throughput"],
            output_tokens_per_s=found["output_throughput"],
            ttft=latency("ttft"),
            tpot=latency("tpot"),
            itl=latency("itl"),
        )
