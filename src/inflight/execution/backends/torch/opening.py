"""Opens the backend of a device: over kernels on a GPU, over the operations' numpy definitions on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from inflight.execution.backends.protocol import DType
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.buckets import NO_BUCKETS, Buckets, row_sizes, token_sizes
from inflight.execution.backends.torch.capture import (
    CapturedDecoder,
    CapturedPassDecoder,
    CapturedPasses,
    Graph,
    Graphs,
    Passes,
)
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.device import has_fp8
from inflight.execution.backends.torch.launcher import KernelLauncher, Launcher
from inflight.execution.backends.torch.streams import CudaCopyStream
from inflight.execution.backends.torch.summing import Summing, SummingLauncher
from inflight.execution.graphs import NO_GRAPHS, GraphLimits

if TYPE_CHECKING:
    from inflight.execution.backends.protocol import Backend


def open_device(
    dtype: DType,
    device: str,
    threads: int = 1,
    graphs: GraphLimits = NO_GRAPHS,
    ranks: Summing | None = None,
    batch_invariant: bool = False,
) -> TorchBackend:
    """device: "cpu", or the name of a GPU that is there. ranks: of devices that compute a model together. Other
    arguments as of `backends.open_backend`; definitions always are batch invariant."""
    if device == "cpu":
        torch.set_num_threads(threads)
        launcher = _summing(Definitions(), ranks)
        return TorchBackend(dtype, torch.device(device), launcher, threads, batch_invariant=True)
    torch.cuda.set_device(device)
    gpu, launcher = torch.device(device), _summing(KernelLauncher(), ranks)
    buckets = graph_buckets(graphs, batch_invariant)
    return TorchBackend(dtype, gpu, launcher, threads, 2, buckets, batch_invariant, has_fp8(gpu), CudaCopyStream(gpu))


def graph_buckets(limits: GraphLimits, batch_invariant: bool) -> Buckets:
    """Return the sizes of passes that are captured. Where bits may not depend on a chunk's length, chunks of several
    tokens are attended to as single ones are, and a graph serves both."""
    if not limits.rows:
        return NO_BUCKETS
    rows, tokens = row_sizes(limits.rows), token_sizes(limits.tokens) if limits.tokens else ()
    return Buckets((), tokens) if batch_invariant and tokens else Buckets(rows, tokens[1:])


def _summing(launcher: Launcher, ranks: Summing | None) -> Launcher:
    return launcher if ranks is None else SummingLauncher(launcher, ranks)


def captured(decoder: CapturedPassDecoder, backend: Backend) -> CapturedDecoder:
    """Return a decoder that captures its passes as graphs, on a GPU."""
    return CapturedDecoder(decoder, *_graphs(backend))


def captured_passes(decoder: Passes, backend: Backend) -> CapturedPasses:
    """Return the captured passes of a drafter that is no decoder of a model, on a GPU."""
    return CapturedPasses(decoder, *_graphs(backend), draws_ends=True)


def _graphs(backend: Backend) -> tuple[Graphs, Buckets]:
    """Return the graphs, created once: those of all decoders of a backend have their memory from one pool."""
    assert isinstance(backend, TorchBackend)
    if backend.graphs is None:
        backend.graphs = CudaGraphs(backend.device)
    return backend.graphs, backend.buckets


class CudaGraphs:
    """`capture.Graphs` on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], None]) -> Graph:
        """Capture in thread-local mode: other threads may query the device meanwhile, as whether an event has
        passed."""
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            run()
        return graph
