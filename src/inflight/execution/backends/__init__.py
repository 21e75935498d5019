"""Backends: what the decoder needs from a device (`protocol`), and who offers it (`reference`, `native`, `torch`,
`null`).

Importing this package loads no kernels; `open_backend` loads the one that is asked for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from inflight.cpus import ANYWHERE, ThreadCpus, usable_cpus
from inflight.execution.graphs import NO_GRAPHS, GraphLimits

if TYPE_CHECKING:
    from inflight.execution.backends.protocol import Backend, DType

__all__ = ["open_backend"]


def open_backend(
    dtype: DType = "bfloat16",
    threads: int | None = None,
    isa: str = "auto",
    cpus: ThreadCpus = ANYWHERE,
    device: str = "cpu",
    graphs: GraphLimits = NO_GRAPHS,
    batch_invariant: bool = False,
) -> Backend:
    """Open the backend for a device of this machine: "cpu", or "cuda:0" and the like (`torch.device` lists them). On
    such a GPU passes within `graphs` are made so that graphs can be captured of them.
    batch_invariant: there, the bits of a row do not depend on the rows beside it, as those of a CPU never do.

    The rest is about the CPU. `threads` None takes those this process may run on. `isa` is "auto" (the best this CPU
    has, unless the environment variable INFLIGHT_ISA names another), one of `native.available_isas()`, "reference"
    (numpy), "torch" (the backend for GPUs, over numpy definitions), or "null" (computes nothing). `cpus`: where
    threads run.
    """
    if threads is None:
        threads = usable_cpus().num_threads
    if isa == "auto":
        isa = os.environ.get("INFLIGHT_ISA") or "auto"
    if device != "cpu" or isa == "torch":
        from inflight.execution.backends.torch.opening import open_device

        return open_device(dtype, device, threads, graphs, None, batch_invariant)
    if isa == "reference":
        from inflight.execution.backends.reference import ReferenceBackend

        return ReferenceBackend(dtype, threads)
    if isa == "null":
        from inflight.execution.backends.null import NullBackend

        return NullBackend(dtype, threads)
    from inflight.execution.backends.native import NativeBackend

    return NativeBackend(dtype, threads, isa, cpus)
