"""GuideLLM: constant concurrency over streamed chats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.judges.definitions import Definition, of_single_values
from benchmarks.judges.judge import Figures, Judge, Latency, Load, Target, read_json
from tests.foreign.environments import Environment


class GuideLLM(Judge):
    name = "guidellm"
    title = "guidellm run, --profile kind=concurrent"
    environment = Environment("guidellm")
    notes = ("Its percentiles are values of single requests, where ours lie between two.",)

    def command(self, target: Target, load: Load, folder: Path) -> Sequence[str]:
        backend = f"target={target.url},model={target.model},request_format=/v1/chat/completions,stream=true"
        lengths = f"prompt_tokens={load.input_tokens},output_tokens={load.output_tokens}"
        return [
            "guidellm",
            *("run", "--disable-progress", "--backend", f"kind=openai_http,{backend}"),
            *("--profile", f"kind=concurrent,streams={load.concurrency}"),
            *("--constraint", f"kind=max_requests,count={load.requests}"),
            *("--tokenizer", f"kind=huggingface_auto,model={target.tokenizer}"),
            *("--data", f"kind=synthetic_text,{lengths}"),
            *("--output", f"kind=json,path={folder / 'guidellm.json'}"),
        ]

    def definition(self, target: Target, folder: Path) -> Definition:
        return Definition(quantile=of_single_values)

    def figures(self, folder: Path, output: str) -> Figures:
        metrics = read_json(folder / "guidellm.json")["benchmarks"][0]["metrics"]

        def latency(name: str) -> Latency:
            found = metrics[name]["successful"]
            return Latency.of_ms(found["mean"], found["percentiles"]["p50"], found["percentiles"]["p99"])

        totals = metrics["request_totals"]
        return Figures(
            requests=totals["successful"],
            failed=totals["errored"] + totals["incomplete"],
            output_tokens=round(metrics["output_token_count"]["successful"]["total_sum"]),
            input_tokens=round(metrics["prompt_token_count"]["successful"]["total_sum"]),
            requests_per_s=metrics["requests_per_second"]["successful"]["mean"],
            output_tokens_per_s=metrics["output_tokens_per_second"]["successful"]["mean"],
            ttft=latency("time_to_first_token_ms"),
            tpot=latency("inter_token_latency_ms"),
        )
