"""How far bf16 is from float32 in every family: here, as a multiple of what torch's own bf16 errs.

Random models of each variant of the tests, several seeds each, over a prompt of their whole length. The error is the
root mean square of the logits' difference to those that torch computes in float32. A ratio of one seed says little:
where a rounding picks another expert, or another winner of a sharp softmax, the error is a step that falls to either
side; the median over seeds says whose arithmetic rounds more.

    nice python -m benchmarks.family_error --seeds 20
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.results import table, write_section
from inflight.execution.backends.protocol import Array

CHUNK = 64  # tokens of a step
BOUND = 1.1  # of the median


@dataclass(frozen=True)
class Ratios:
    """Return the error of one variant for each seed."""

    variant: str
    ratios: tuple[float, ...]

    @property
    def cells(self) -> list[str]:
        middle = median(self.ratios)
        above = sum(one > 1 for one in self.ratios)
        ends = f"{min(self.ratios):.2f} … {max(self.ratios):.2f}"
        return [
            self.variant,
            f"{middle:.2f}",
            ends,
            f"{above} of {len(self.ratios)}",
            "" if middle <= BOUND else "above",
        ]


def of_variant(variant: str, seeds: int, isa: str) -> Ratios:
    return Ratios(variant, tuple(_ratio(variant, seed, isa) for seed in range(seeds)))


def _ratio(variant: str, seed: int, isa: str) -> float:
    from tests.execution.driver import Driver
    from tests.execution.oracle import build

    with tempfile.TemporaryDirectory() as folder:
        oracle = build(variant, Path(folder), seed)
        driver = Driver.of(oracle.folder, "bfloat16", isa)
        ours = driver.prefill(driver.start(oracle.prompt), CHUNK)
        return _error(ours, oracle.logits) / _error(oracle.bf16_logits(), oracle.logits)


def _error(found: Array, exact: Array) -> float:
    return float(np.sqrt(np.mean((found - exact) ** 2)))


def all_of(variants: list[str], seeds: int, isa: str, report: Callable[[str], None]) -> Iterator[Ratios]:
    for variant in variants:
        found = of_variant(variant, seeds, isa)
        report(" ".join(found.cells))
        yield found


def main() -> None:
    from tests.execution.variants import VARIANTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--isa", default="auto", help="instruction set, or reference")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--no-write", action="store_true", help="print only; leave docs/results.md")
    args = parser.parse_args()
    found = list(all_of(args.variants, args.seeds, args.isa, lambda line: print(line, flush=True)))
    head = ["variant", "median", "least … greatest", "seeds above 1", f"median above {BOUND}"]
    body = table(head, [one.cells for one in found])
    if not args.no_write:
        write_section(
            "family_error",
            "The error of bf16, family by family",
            f"python -m benchmarks.family_error --seeds {args.seeds}",
            "Root mean square error of logits in bf16 beside torch's float32, as a multiple of that of torch's own "
            f"bf16: random models, {args.seeds} seeds of each variant of the tests, a prompt of 160 tokens.\n\n{body}",
        )


if __name__ == "__main__":
    main()
