"""The backend of a device: with kernels of our own on a GPU, with PyTorch's operations on a CPU.

Knows who computes where, and how many steps are worth having in flight; not how anything is computed.
"""

from __future__ import annotations

import torch

from inflight.execution.backends.protocol import DType
from inflight.execution.backends.torch import eager
from inflight.execution.backends.torch.backend import TorchBackend


def open_device(dtype: DType, device: str, threads: int = 1) -> TorchBackend:
    """device: "cpu", or the name of a GPU that is there."""
    torch.set_num_threads(threads)
    return TorchBackend(dtype, torch.device(device), eager, threads)
