"""AIPerf: Poisson arrivals of streamed completions."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.judges.definitions import Definition
from benchmarks.judges.judge import PACKAGES, Figures, Judge, Latency, Load, Target, read_json
from tests.foreign.environments import Environment

_REVISION = "0" * 40
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def _others(names: list[str]) -> set[str]:
    return set(names) - set(_TOKENIZER)


class AIPerf(Judge):
    name = "aiperf"
    title = "aiperf profile --arrival-pattern poisson"
    environment = Environment("judge_aiperf", PACKAGES / "aiperf")

    notes = (
        "Its ITL is per request and token, our TPOT; its inter-chunk latency is our ITL.",
        "Its rates are of a window of its own, which it does not report: longer than its benchmark_duration.",
    )

    def command(self, target: Target, load: Load, folder: Path) -> Sequence[str]:
        tokenizer = self._in_hub_cache(target)
        return [
            "aiperf",
            *("profile", "--model", target.model, "--url", target.url, "--tokenizer", tokenizer),
            *("--endpoint-type", "completions", "--streaming", "--use-server-token-count"),
            *("--synthetic-input-tokens-mean", str(load.input_tokens), "--synthetic-input-tokens-stddev", "0"),
            *("--output-tokens-mean", str(load.output_tokens), "--output-tokens-stddev", "0"),
            *("--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"),
            *("--request-rate", f"{load.rate:g}", "--arrival-pattern", "poisson"),
            *("--request-count", str(load.requests), "--random-seed", "1", "--workers-max", "1"),
            *("--record-processors", "1", "--no-gpu-telemetry", "--no-server-metrics", "--ui", "none"),
            *("--output-artifact-dir", str(folder)),
        ]

    def _in_hub_cache(self, target: Target) -> str:
        """Copy the tokenizer to where a download would be, and return its name: offline no folder is accepted."""
        cached = self.environment.root / "hub" / "hub" / f"models--inflight--{target.model}"
        shutil.rmtree(cached, ignore_errors=True)
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text(_REVISION, encoding="utf-8")
        shutil.copytree(target.tokenizer, cached / "snapshots" / _REVISION, ignore=lambda _, names: _others(names))
        return f"inflight/{target.model}"

    def definition(self, target: Target, folder: Path) -> Definition:
        found = read_json(folder / "profile_export_aiperf.json")
        return Definition(window=found["benchmark_duration"]["avg"])

    def figures(self, folder: Path, output: str) -> Figures:
        found = read_json(folder / "profile_export_aiperf.json")

        def latency(name: str) -> Latency:
            return Latency.of_ms(*(found[name][which] for which in ("avg", "p50", "p99")))

        def total(name: str) -> int:
            return round(found[name]["avg"]) if found.get(name) else 0

        return Figures(
            requests=total("request_count"),
            failed=total("error_request_count"),
            output_tokens=total("total_output_tokens"),
            input_tokens=total("total_isl"),
            requests_per_s=found["request_throughput"]["avg"],
            output_tokens_per_s=found["output_token_throughput"]["avg"],
            ttft=latency("time_to_first_token"),
            tpot=latency("inter_token_latency"),
            itl=latency("inter_chunk_latency"),
        )
