"""Graphs of CUDA: what a function launches, noted once and launched again as one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from inflight.execution.backends.torch.capture import Graph


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
