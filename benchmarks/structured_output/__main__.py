"""The command: which part is measured, on which models, and the section of docs/results.md that it makes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.decoding import blocks, context
from benchmarks.engines import Model
from benchmarks.results import write_section
from benchmarks.shapes import QWEN25_05B
from benchmarks.structured_output import arrivals, costs, real_schemas, steps
from inflight.execution.backends.protocol import Quantization
from inflight.execution.grammars.compiled_grammars import CompiledGrammars

MODELS: dict[str, Quantization] = {"bf16": "none", "int8": "int8", "int4": "int4"}
TITLES = {
    "steps": "Structured output: steps whose rows follow a schema",
    "arrivals": "Structured output: new schemas",
    "costs": "Structured output: vocabularies, compiling and masks",
    "schemas": "Structured output: schemas of real projects, and their instances",
}


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    if asked.part == "schemas":
        body = _of_schemas(asked)
    else:
        body = costs.report(asked.repeats) if asked.part == "costs" else _on_models(asked)
    print(body)
    if asked.write:
        given = [one for one in (sys.argv[1:] if arguments is None else arguments) if one != "--write"]
        command = " ".join(["python -m benchmarks.structured_output", *given])
        write_section(f"structured_output {asked.part}", TITLES[asked.part], command, body)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structured_output", description=__doc__)
    parser.add_argument("--part", choices=list(TITLES), default="steps")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["bf16"], help="Qwen2.5-0.5B's shape")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--legs", type=int, default=40, help="of steps and arrivals: turns of 16 steps (default 40)")
    parser.add_argument("--repeats", type=int, default=5, help="of costs (default 5)")
    parser.add_argument("--schemas", type=Path, default=Path("../shared/cases/schemas.jsonl"), help="of schemas")
    parser.add_argument("--vocabulary", type=int, default=costs.VOCABULARIES[-1], help="of schemas: tokens")
    parser.add_argument("--no-masks", action="store_true", help="of schemas: do not time masks")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


def _of_schemas(asked: argparse.Namespace) -> str:
    vocabulary = costs.vocabulary(asked.vocabulary)
    compiled = CompiledGrammars(lambda: vocabulary)
    body = real_schemas.report(asked.schemas, compiled, asked.vocabulary, not asked.no_masks)
    compiled.close()
    return body


def _on_models(asked: argparse.Namespace) -> str:
    is_steps = asked.part == "steps"
    leg, settling, report = (
        (steps.LEG, steps.SETTLING, steps.report) if is_steps else (arrivals.LEG, arrivals.SETTLING, arrivals.report)
    )
    most = (1 if is_steps else 2) * (asked.legs * leg + settling)
    size = int(str(QWEN25_05B["vocab_size"]))
    vocabulary = costs.vocabulary(size)
    compiled = CompiledGrammars(lambda: vocabulary)
    compiled.warm_up()
    models = [Model("qwen", blocks(asked.rows, most), context(most), MODELS[one]) for one in asked.models]
    text = report(models, asked.rows, asked.legs, compiled)
    compiled.close()
    return text


if __name__ == "__main__":
    main()
