"""The backend on the CPU, as the tests of it open it: one thread, so that many tests share the cores."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inflight.execution.backends.protocol import DType
from inflight.execution.backends.torch import eager
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.streams import CopyStream


def on_cpu(
    dtype: DType = "float32", depth: int = 1, buckets: Sequence[int] = (), copies: CopyStream | None = None
) -> TorchBackend:
    torch.set_num_threads(1)
    return TorchBackend(dtype, torch.device("cpu"), eager, depth=depth, buckets=buckets, copies=copies)
