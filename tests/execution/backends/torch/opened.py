"""The backend as the tests of it open it: the definitions on the CPU, in one thread, so that tests share the cores; for
whole engines, with TRITON_INTERPRET=0, our kernels on the GPU, of which the same is asked."""

from __future__ import annotations

import torch

from inflight.execution.backends.protocol import DType
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.buckets import NO_BUCKETS, Buckets
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.device import has_fp8
from inflight.execution.backends.torch.launcher import KernelLauncher
from inflight.execution.backends.torch.streams import CopyStream, CudaCopyStream


def on_cpu(
    dtype: DType = "float32", depth: int = 1, buckets: Buckets = NO_BUCKETS, copies: CopyStream | None = None
) -> TorchBackend:
    torch.set_num_threads(1)
    return TorchBackend(dtype, torch.device("cpu"), Definitions(), depth=depth, buckets=buckets, copies=copies)


def on_device(
    dtype: DType = "float32", depth: int = 1, buckets: Buckets = NO_BUCKETS, copies: CopyStream | None = None
) -> TorchBackend:
    if not _on_a_gpu():
        return on_cpu(dtype, depth, buckets, copies)
    gpu = torch.device("cuda", 0)
    torch.cuda.set_device(gpu)
    copies = copies or CudaCopyStream(gpu)
    return TorchBackend(dtype, gpu, KernelLauncher(), 1, depth, buckets, False, has_fp8(gpu), copies)


def _on_a_gpu() -> bool:
    try:
        import triton
    except ImportError:  # there are no wheels for every machine
        return False
    return not triton.knobs.runtime.interpret
