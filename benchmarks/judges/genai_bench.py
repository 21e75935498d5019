"""genai-bench: constant concurrency over streamed chats, by Locust."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.judges.definitions import Definition
from benchmarks.judges.judge import PACKAGES, Figures, Judge, Latency, Load, Target, read_json
from tests.foreign.environments import Environment


class GenAIBench(Judge):
    name = "genai-bench"
    title = "genai-bench benchmark"
    environment = Environment("judge_genai_bench", PACKAGES / "genai_bench")
    notes = ("Its rates are of what it names run_duration: it sends until it has noticed that enough were answered.",)

    def command(self, target: Target, load: Load, folder: Path) -> Sequence[str]:
        return [
            "genai-bench",
            *("benchmark", "--api-backend", "vllm", "--api-base", target.url, "--api-key", "none"),
            *("--api-model-name", target.model, "--model-tokenizer", str(target.tokenizer), "--task", "text-to-text"),
            *("--traffic-scenario", f"D({load.input_tokens},{load.output_tokens})"),
            *("--num-concurrency", str(load.concurrency), "--max-time-per-run", "10"),
            *("--max-requests-per-run", str(load.requests)),
            *("--experiment-base-dir", str(folder), "--experiment-folder-name", "run"),
            *("--log-dir", str(folder)),
        ]

    def definition(self, target: Target, folder: Path) -> Definition:
        return Definition(to_the_end=True, window=_aggregated(folder)["run_duration"])

    def figures(self, folder: Path, output: str) -> Figures:
        found = _aggregated(folder)

        def latency(name: str) -> Latency:
            return Latency(*(found["stats"][name][which] for which in ("mean", "p50", "p99")))

        return Figures(
            requests=found["num_completed_requests"],
            failed=found["num_error_requests"],
            output_tokens=round(found["stats"]["num_output_tokens"]["sum"]),
            input_tokens=round(found["stats"]["num_input_tokens"]["sum"]),
            requests_per_s=found["requests_per_second"],
            output_tokens_per_s=found["mean_output_throughput_tokens_per_s"],
            ttft=latency("ttft"),
            tpot=latency("tpot"),
        )


def _aggregated(folder: Path) -> Any:
    (path,) = (folder / "run").glob("D*_time_*.json")
    return read_json(path)["aggregated_metrics"]
