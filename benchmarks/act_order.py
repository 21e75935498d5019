"""Measure what an order of inputs costs: products over 4-bit matrices whose groups are out of order (act-order), beside
the same matrices in order.

Of Llama-3.1-8B's matrices, one after the other so that none stays in a cache, for several numbers of tokens. What is
added is a copy of x with its columns in the matrix's order.

    nice python -m benchmarks.act_order
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.results import table
from inflight.core.types.plan import Capacity
from inflight.execution import ops
from inflight.execution.backends.matrices import LINEAR_CODES, Int4Matrix, Matrix, ReorderedMatrix
from inflight.execution.backends.native import NativeBackend, NativeProgram
from inflight.execution.backends.protocol import KVShape
from inflight.execution.program import Program

SHAPES = {"q, k, v": (6144, 4096), "o": (4096, 4096), "up": (14_336, 4096), "down": (4096, 14_336)}
GROUP = 128


def matrix(outputs: int, inputs: int) -> Int4Matrix:
    random = np.random.default_rng(outputs)
    codes = random.integers(0, 16, (outputs, inputs), np.uint8)
    return Int4Matrix(codes, np.full((outputs, inputs // GROUP), 0.01, np.float32), None, GROUP, LINEAR_CODES)


def linear(backend: NativeBackend, x: object, weight: object, out: object) -> NativeProgram:
    program = Program()
    ops.linear(program, x, weight, out)
    return backend.compile(program)


def seconds(
    backend: NativeBackend, tokens: int, kinds: Sequence[Sequence[object]], shape: tuple[int, int], times: int
) -> list[float]:
    """Time one product for each kind of weights: the minimum of `times` rounds, in which kinds take turns."""
    slots, cache = (
        backend.input_batch(Capacity(1, 16, 1, 16, 1), 0),
        backend.kv_cache(KVShape.uniform(1, 16, 1, 32), 1),
    )
    batch = backend.prepare(slots, cache, ())
    x, out = backend.activation(tokens, shape[1], "act"), backend.activation(tokens, shape[0], "float32")
    x.array[:] = np.random.default_rng(1).integers(0x3C00, 0x3F80, x.array.shape)
    programs = [[linear(backend, x, weight, out) for weight in weights] for weights in kinds]
    taken = np.empty((times, len(kinds)))
    for turn in range(times):
        for kind, weights in enumerate(programs):
            started = time.perf_counter()
            for program in weights:
                batch.run(program)
            taken[turn, kind] = (time.perf_counter() - started) / len(weights)
    return [float(one) for one in taken.min(axis=0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 16, 256])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=60, help="rounds of one token; fewer of more")
    args = parser.parse_args()
    backend = NativeBackend("bfloat16", args.threads)
    rows = []
    for name, shape in SHAPES.items():
        plain = matrix(*shape)
        order = np.random.default_rng(0).permutation(shape[1]).astype(np.int32)
        kinds: tuple[Matrix, Matrix] = (plain, ReorderedMatrix(plain, order))
        held = [[backend.pack_linear([kind]) for _ in range(3)] for kind in kinds]
        for tokens in args.tokens:
            one, other = seconds(backend, tokens, held, shape, max(args.times * 16 // (tokens + 15), args.times // 4))
            rows.append([name, tokens, f"{one * 1e3:.2f}", f"{other * 1e3:.2f}", f"{other / one - 1:+.1%}"])
    print(table(["matrix", "tokens", "in order, ms", "out of order, ms", "more"], rows))


if __name__ == "__main__":
    main()
