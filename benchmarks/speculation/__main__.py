"""The command: which part is measured, on which models, and the section of docs/results.md that it makes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import get_args

from benchmarks.results import write_section
from benchmarks.speculation import contest, draft_model, first_token, shares, step_costs, swing
from benchmarks.speculation.corpus import Kind, Part
from benchmarks.speculation.engine import OwnTime
from inflight.engine.clock import Clock, MonotonicClock
from inflight.execution.backends.protocol import Quantization

MODELS: dict[str, tuple[str, Quantization]] = {
    "built-in": ("built-in", "none"),
    "bf16": ("qwen", "none"),
    "int8": ("qwen", "int8"),
    "int4": ("qwen", "int4"),
    "tiny": ("tiny", "none"),
}
TITLES = {
    "costs": "Speculation: what verifying drafts costs a step",
    "contest": "Speculation against none",
    "swing": "Speculation under a load that swings",
    "shares": "Speculation: what deciding on drafts takes",
    "draft-model": "Speculation with a draft model of known acceptance",
    "first-token": "Speculation and the time to the first token",
}
DRAFTS = {"costs": "0,1,2,4,8,16", "draft-model": "1,3,5"}
BATCHES = {"draft-model": "1,4"}


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    body = _parts(asked)[asked.part]()
    print(body)
    if asked.write:
        given = [one for one in (sys.argv[1:] if arguments is None else arguments) if one != "--write"]
        models, title = " and ".join(asked.models), TITLES[asked.part]
        if asked.part == "contest":  # it has a section for each of several models
            title += f", {models}"
        command = " ".join(["python -m benchmarks.speculation", *given])
        write_section(f"speculation {asked.part}, {models}", title, command, body)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__)
    parser.add_argument("--part", choices=list(TITLES), default="contest")
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=["built-in"], help="built-in, or Qwen2.5-0.5B's shape"
    )
    parser.add_argument("--kinds", nargs="+", choices=get_args(Kind), default=list(get_args(Kind)), help="of texts")
    parser.add_argument("--batches", help="rows, such as 1,4,16,64 (the default)")
    parser.add_argument("--drafts", help="of costs and draft-model: numbers of drafts")
    parser.add_argument("--legs", type=int, default=30, help="turns, repeats or windows (default 30)")
    parser.add_argument(
        "--leg-tokens", type=int, help="of contest: tokens of a turn at 1 row (default: an answer's mean)"
    )
    parser.add_argument("--texts", choices=get_args(Part), default="tuning", help="which half of the corpus")
    parser.add_argument(
        "--own-time", action="store_true", help="one thread, and its processor time: where others use the machine"
    )
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


def _parts(asked: argparse.Namespace) -> dict[str, Callable[[], str]]:
    clock: Clock = OwnTime() if asked.own_time else MonotonicClock()
    threads = 1 if asked.own_time else None
    models = [MODELS[one] for one in asked.models]
    batches = _numbers(asked.batches or BATCHES.get(asked.part, "1,4,16,64"))
    drafts = _numbers(asked.drafts or DRAFTS.get(asked.part, "0"))
    legs, texts = asked.legs, asked.texts
    return {
        "costs": lambda: step_costs.report(models, batches, drafts, legs, threads, clock),
        "contest": lambda: contest.report(models, batches, legs, asked.leg_tokens, texts, asked.kinds, threads, clock),
        "swing": lambda: "\n\n".join(swing.report(*one, legs, texts, threads, clock) for one in models),
        "shares": lambda: shares.report(models, batches, legs, texts, threads, clock),
        "draft-model": lambda: draft_model.report(batches, drafts, legs, threads, clock),
        "first-token": lambda: "\n\n".join(first_token.report(*one, legs, texts, threads, clock) for one in models),
    }


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


if __name__ == "__main__":
    main()
