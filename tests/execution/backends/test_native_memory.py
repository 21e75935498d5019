"""The kernels when memory is short, and who may touch the KV cache when."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.protocol import KVShape

from .conftest import ops_for
from .material import Case

SHORT = """
import resource
import sys
import numpy as np
from inflight.execution.backends.native import NativeBackend
sys.path.insert(0, "tests")
from execution.backends.material import OnArrays

backend = NativeBackend("float32", 3)
ops = OnArrays(backend)
packed = ops.pack_linear([np.ones((8, 4000), np.float32)], hold="int8")
backend.finish_packing()  # whose thread would give its stack back below
x, out = np.ones((20000, 4000), np.float32), np.empty((20000, 8), np.float32)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + 4 * 2**20, before[1]))
try:
    ops.linear(x, packed, out)
except MemoryError:
    print("refused")
resource.setrlimit(resource.RLIMIT_AS, before)
ops.linear(x, packed, out)
print(np.unique(out.round(-1)).tolist())  # scales are held in 16 bits
"""


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="its allocator ends the process")
def test_scratch_that_cannot_be_had_is_an_error_and_not_the_end() -> None:
    """Inputs of 320 MB that are quantized need 80 MB of scratch, more than the C library keeps in reserve for a thread
    (64 MB), that which has packed among them; with room again the same call works."""
    ran = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout.split("\n")[:2]) == (0, ["refused", "[4000.0]"]), ran.stderr


def test_copies_wait_for_their_turn() -> None:
    """Blocks are not copied while other work of the backend may be writing to them: a probe that runs until a given
    moment has come is over when the copies are there."""
    backend, seconds = NativeBackend("float32", 1), 0.5
    cache = backend.kv_cache(KVShape.uniform(1, 16, 1, 32), 4)
    begun, cpu = time.perf_counter(), time.process_time()
    other = threading.Thread(target=backend.peak_flops, args=("f32", seconds))
    other.start()
    while time.process_time() - cpu < 0.05:  # it is running
        time.sleep(0.001)
    backend.copy_blocks(cache, [0], [1])
    over = time.perf_counter() >= begun + seconds
    other.join()
    assert over


def test_attention_is_divided_once_for_all_layers_that_see_alike() -> None:
    """A pass of four layers under two windows has the bits of a pass for each layer."""
    ops = ops_for("float32", "auto", 2)
    case = Case.build(ops, KVShape.uniform(4, 16, 1, 32), 3, [200, 40])
    chunks, windows = [(0, 0, 200), (1, 0, 40)], [0, 30, 0, 30]
    want = [case.run(chunks, layer, window) for layer, window in enumerate(windows)]
    batch, queries = case.prepared(chunks)
    for layer, window in enumerate(windows):
        out = ops.activation(240, 96, "float32")
        batch.attention(queries, layer, 32**-0.5, window, out)
        np.testing.assert_array_equal(out.array, np.concatenate(want[layer]))
