"""Measure what products over 4-bit matrices take, beside the same in int8: by the size of groups, with a table of
codes, and with offsets; and over plain weights in int8, whose spans are mixed.

One matrix, of Llama-3.1-8B's MLP unless --shape names another, for several numbers of rows, in one core's own time, so
that what others do on the machine counts as little as it can. All kinds take turns, and each has two matrices, so that
none stays in a cache.

    nice python -m benchmarks.int4 [--write]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.kernel_bodies import Body, ones, plain, recorded
from benchmarks.rates import Probe, Timing, in_turns
from benchmarks.results import table, write_section
from inflight.execution import ops
from inflight.execution.backends import host
from inflight.execution.backends.matrices import INT8_GROUP, LINEAR_CODES, Int4Matrix, Int8Matrix, Matrix
from inflight.execution.backends.native import NativeBackend, NativePass

# What the codes of MXFP4 stand for, twice as large, so that they are whole.
TABLE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
MATRICES = 2  # of each kind, one after the other


Shape = tuple[int, int]  # outputs, inputs


def int4(shape: Shape, group: int, meanings: np.ndarray = LINEAR_CODES, offsets: bool = False) -> Int4Matrix:
    codes = np.random.default_rng(group).integers(0, 16, shape, np.uint8)
    scales = np.full((shape[0], -(-shape[1] // group)), 0.01, np.float32)
    return Int4Matrix(codes, scales, scales / 2 if offsets else None, group, meanings)


def int8(shape: Shape) -> Int8Matrix:
    values = np.random.default_rng(8).integers(-127, 128, shape, np.int8)
    return Int8Matrix(values, np.full((shape[0], -(-shape[1] // INT8_GROUP)), 0.01, np.float32), None, INT8_GROUP)


def bytes_of(matrix: Matrix) -> float:
    """As packed: codes, and scales and offsets in 16 bits."""
    size = matrix.shape[0] * matrix.shape[1]
    if not isinstance(matrix, Int4Matrix | Int8Matrix):  # plain, to be packed in int8
        return size * (1 + 2 / INT8_GROUP)
    numbers = matrix.scales.size * (1 if matrix.offsets is None else 2)
    return size / (2 if isinstance(matrix, Int4Matrix) else 1) + 2.0 * numbers


def in_turn(backend: NativeBackend, batch: NativePass, x: Any, weights: Sequence[Any], out: Any) -> Callable[[], None]:
    runs = [recorded(backend, batch, partial(ops.linear, x=x, weight=weight, out=out)) for weight in weights]
    turn = itertools.cycle(runs)
    return lambda: next(turn)()


def bodies(backend: NativeBackend, shape: Shape, rows: list[int]) -> tuple[list[str], list[list[Body]]]:
    """Names of the kinds, int8 first; and for each number of rows the product of each kind."""
    kinds: Mapping[str, Matrix] = {
        "int8": int8(shape),
        "int8, mixed": int8(shape).values.astype(np.float16),
        **{f"groups of {group}": int4(shape, group) for group in (128, 64, 32, 16)},
        "32, table": int4(shape, 32, TABLE),
        "32, offsets": int4(shape, 32, offsets=True),
    }
    batch = plain(backend)
    found: list[list[Body]] = [[] for _ in rows]
    for name, matrix in kinds.items():
        held = [backend.pack_linear([matrix], hold="int8") for _ in range(MATRICES)]
        for row, count in zip(found, rows, strict=True):
            x, out = backend.activation_of(ones(count, shape[1])), host.empty((count, shape[0]), np.float32)
            operations = 2.0 * shape[0] * shape[1] * count
            run = in_turn(backend, batch, x, held, backend.activation_of(out))
            row.append(Body(name, run, bytes_of(matrix), operations, "int8", MATRICES))
    return list(kinds), found


def cells(timings: list[Timing], probe: Probe) -> list[str]:
    first, *others = timings
    machine = probe.best
    ratios = (f"{one.over(first)}, {one.ceiling(machine) / min(one.seconds):.2f}" for one in others)
    return [*first.cells(machine), *ratios]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--shape", type=int, nargs=2, default=[14_336, 4096], metavar=("OUTPUTS", "INPUTS"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    outputs, inputs = arguments.shape
    if arguments.repeats < 2:
        parser.error("--repeats must be 2 or more: quartiles are taken over them")
    backend = NativeBackend("bfloat16", 1)
    probe = Probe(backend, own_time=True)
    names, products = bodies(backend, (outputs, inputs), arguments.rows)
    found = in_turns(products, probe, arguments.repeats, time.process_time)
    rows = [[count, *cells(timings, probe)] for count, timings in zip(arguments.rows, found, strict=True)]
    body = (
        f"A product over a matrix of {outputs:,} × {inputs:,}: of int8 milliseconds of one core's own time, the best "
        f"of {arguments.repeats}, and the share of the roofline: of that best, and in brackets the median. Of others "
        "the time over int8's of the same repetition (the median, and what the middle half lies between), and the "
        "best's share of its own roofline, whose arithmetic is that of int8; int4 has about half as many bytes.\n\n"
        f"{backend.name}, 1 thread. {probe.summary()}\n\n"
    ) + table(["rows", "int8, ms", "share", *names[1:]], rows)
    print(body)
    if arguments.write:
        given = " ".join(str(one) for one in arguments.rows)
        command = f"python -m benchmarks.int4 --rows {given} --shape {outputs} {inputs} --repeats {arguments.repeats}"
        write_section("int4", "4-bit products beside int8", command, body)


if __name__ == "__main__":
    main()
