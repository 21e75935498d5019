"""How far predicted figures of published runs are off: ours, and those of NVIDIA's AISimulate.

Half of the sources were for fitting (`python -m benchmarks.published.fit`), the others are held out. AISimulate's
answers are kept beside the measurements; with --aisimulate it is asked for those that are missing.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.published.comparison import details, groups, summary
from benchmarks.published.measurements import Figures, Measurement, read_measurements
from benchmarks.published.prediction import Prediction, simulated, with_interval
from benchmarks.published.rival import Rival, ask_rival, read_rival
from benchmarks.published.verdict import verdict
from benchmarks.results import write_section


def predicted(measurements: Sequence[Measurement], seconds: float, processes: int = 1) -> dict[str, Prediction]:
    """Return the predictions by name, of the runs with the fewest output tokens first, as far as the time goes."""
    until, found = time.monotonic() + seconds, dict[str, Figures]()
    ordered = sorted(measurements, key=lambda one: (bool(one.doubt), one.requests * one.output))
    with ProcessPoolExecutor(processes) as pool:
        for first in range(0, len(ordered), processes):
            if time.monotonic() > until:
                break
            some = ordered[first : first + processes]
            for one, figures in zip(some, pool.map(simulated, some), strict=True):
                found[one.name] = figures
                print(f"{len(found)} of {len(ordered)}: {one.name}: {figures}", flush=True)
    return {one.name: with_interval(one, found[one.name]) for one in ordered if one.name in found}


def page(measurements: Sequence[Measurement], ours: Mapping[str, Prediction], rival: Rival) -> str:
    """Return the section: errors, sentences on them, and every run."""
    believed = [one for one in measurements if not one.doubt]
    held_out = sum(one.held_out for one in believed)
    about = (
        f"{len(believed)} runs of {len({one.source for one in believed})} sources, {held_out} of them held out: "
        "nothing was fitted on any run of their sources, which a hash of the source's name chose. "
        "Errors are |predicted / published - 1|. The interval is meant to hold 80 % of the runs; its ends come from "
        "fits without the source. The form of the model follows timed kernels, the engines' own rules and the fitted "
        "half; earlier forms had stood beside all runs, so that where held-out ones were far off was known when "
        "experts in eight bits got a width of their own, and those without a tuned kernel on an H100 a bound. "
        "Where the same model on the same GPU and engine is in a fitted source, too, it is in a group of its own. "
        "SGLang's runs are simulated with a strategy that this program alone has, of steps of prompts or of decodes, "
        "never both, and with `--kv-allocation reserve-request`, as TensorRT-LLM's are; `plan --engine sglang` has the "
        "strategies and the admission of inflight, so that these errors and intervals are not those of such a plan. "
    )
    if len(ours) < len(measurements):
        about += f"{len(ours)} of {len(measurements)} runs were simulated, the shortest first. "
    about += f"\n\n{verdict(measurements, ours, rival)}"
    tables = f"{summary(measurements, ours, rival.figures)}\n\n{groups(measurements, ours)}"
    return f"{about}\n\n{tables}\n\n{details(measurements, ours, rival)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--aisimulate", type=Path, metavar="PROGRAM", help="its `aisimulate`, asked for what is missing"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="runs whose name or source has this in it")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no other run is simulated")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write puts all runs on the page; leave --only out.")
    chosen = [one for one in read_measurements() if arguments.only in f"{one.source} {one.name}"]
    rival = read_rival() if arguments.aisimulate is None else ask_rival(arguments.aisimulate, chosen)
    ours = predicted(chosen, arguments.seconds, arguments.processes)
    body = page(chosen, ours, rival)
    print(body)
    if arguments.write:
        limit = "" if math.isinf(arguments.seconds) else f" --seconds {arguments.seconds:g}"
        write_section("published", "Predicted beside published", f"python -m benchmarks.published{limit} --write", body)


if __name__ == "__main__":
    main()
