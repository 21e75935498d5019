"""Cost of `--predictor probe` in an engine's time: its own seconds, and the time of a run with it over one without.

`python -m benchmarks.length_probe_cost MODEL …`; a model is a name, a folder or a file, or a shape of
`benchmarks.shapes`, whose weights are random. Runs with and without the probe alternate. The probe predicts from the
first output on, which is as much as it ever does.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from benchmarks.results import table, write_section
from benchmarks.shapes import SHAPES, write_config
from inflight import LLM, SamplingParams
from inflight.execution.length_probe import probe

ROWS, PROMPT, OUTPUT = 16, 64, 140  # requests, and their tokens: one state at the prompt's end, one later


def engine(model: str, folder: Path, predictor: str, threads: int) -> LLM:
    given: dict[str, Any] = {"threads": threads, "max_num_seqs": ROWS, "policy": "sjf", "predictor": predictor}
    given["max_model_len"] = 512
    if model in SHAPES:
        model = write_config(folder / model, SHAPES[model])
        given |= {"load_format": "dummy", "quantization": "int8"}
    return LLM(model, **given)


def seconds(llm: LLM, seed: int) -> float:
    draws = random.Random(seed)
    prompts: Any = [{"prompt_token_ids": [draws.randrange(1000, 9000) for _ in range(PROMPT)]} for _ in range(ROWS)]
    settings = SamplingParams(max_tokens=OUTPUT, ignore_eos=True, temperature=0)
    began = time.perf_counter()
    llm.generate(prompts, settings)
    return time.perf_counter() - began


def row(model: str, rounds: int, threads: int) -> list[object]:
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(probe, MIN_ENDED=0, SCALED_BY=8):
        without, with_probe = (engine(model, Path(folder), one, threads) for one in ("quantiles", "probe"))
        found = [(seconds(without, seed), seconds(with_probe, seed)) for seed in range(rounds)]
        runner: Any = with_probe._engine.loop._executor
        share = runner._probe.seconds / sum(taken for _, taken in found)
        ratio = median(taken / plain for plain, taken in found)
    return [Path(model).name, f"{share:.2%}", f"{ratio:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = [row(model, arguments.rounds, arguments.threads) for model in arguments.models]
    body = (
        f"{ROWS} requests at once, {PROMPT} tokens of prompt and {OUTPUT} of output each, {arguments.rounds} rounds. "
        "The ratio is the median of the rounds; other work on the machine moves it by several percent, but not the "
        "share.\n\n" + table(["model", "share of the time in the probe", "time with it over time without"], rows)
    )
    print(body)
    if arguments.write:
        names = " ".join(Path(model).name for model in arguments.models)
        command = f"python -m benchmarks.length_probe_cost {names} --rounds {arguments.rounds}"
        write_section("length_probe_cost", "What the probe of output lengths takes", command, body)


if __name__ == "__main__":
    main()
