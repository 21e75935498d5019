"""inference-perf, of Kubernetes' working group on serving: Poisson arrivals of streamed completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.judges.definitions import Definition
from benchmarks.judges.judge import PACKAGES, Figures, Judge, Latency, Load, Target, read_json
from inflight.text import Tokenizer
from tests.foreign.environments import Environment


class InferencePerf(Judge):
    name = "inference-perf"
    title = "inference-perf, load type poisson"
    environment = Environment("judge_inference_perf", PACKAGES / "inference_perf", python="3.12")

    def command(self, target: Target, load: Load, folder: Path) -> Sequence[str]:
        config = folder / "config.yaml"
        config.write_text(json.dumps(_config(target, load, folder)), encoding="utf-8")  # JSON is YAML
        return ["inference-perf", "--config_file", str(config)]

    def definition(self, target: Target, folder: Path) -> Definition:
        tokenizer = Tokenizer.load(target.tokenizer)
        return Definition(lambda frame: len(tokenizer.encode(frame.text)))

    def figures(self, folder: Path, output: str) -> Figures:
        found = read_json(folder / "summary_lifecycle_metrics.json")
        done, latencies = found["successes"], found["successes"]["latency"]

        def latency(name: str) -> Latency:
            return Latency(*(latencies[name][which] for which in ("mean", "median", "p99")))

        return Figures(
            requests=done["count"],
            failed=found["failures"]["count"],
            output_tokens=round(done["output_tokens"]["total"]),
            input_tokens=round(done["prompt_tokens"]["total"]),
            requests_per_s=done["throughput"]["requests_per_sec"],
            output_tokens_per_s=done["throughput"]["output_tokens_per_sec"],
            ttft=latency("time_to_first_token"),
            tpot=latency("time_per_output_token"),
            itl=latency("inter_token_latency"),
        )


def _config(target: Target, load: Load, folder: Path) -> dict[str, Any]:
    def fixed(tokens: int) -> dict[str, Any]:
        return {"type": "fixed", "min": tokens, "max": tokens, "mean": tokens, "total_count": load.requests}

    return {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": fixed(load.input_tokens),
            "output_distribution": fixed(load.output_tokens),
        },
        "load": {
            "type": "poisson",
            "stages": [{"rate": load.rate, "duration": round(load.seconds)}],
            "num_workers": 1,
            "base_seed": 1,
        },
        "server": {"type": "vllm", "model_name": target.model, "base_url": target.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(target.tokenizer)},
        "report": {"request_lifecycle": {"use_server_output_tokens": True}},
        "storage": {"local_storage": {"path": str(folder)}},
    }
