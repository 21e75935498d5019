"""The backend of C++ kernels (the repository's `native/`), and probes of what the machine can do.

The compiled module, `_native`, checks what a pass is prepared with, and sizes and types in its operations (ValueError).
Importing this loads no kernels.
"""

from __future__ import annotations

from inflight.execution.backends.native.backend import NativeBackend
from inflight.execution.backends.native.forward_pass import NativePass, NativeProgram
from inflight.execution.backends.native.machine import (
    InstructionSet,
    available_isas,
    instruction_sets,
    peak_flops,
    read_bandwidth_bytes_per_s,
)

__all__ = [
    "InstructionSet",
    "NativeBackend",
    "NativePass",
    "NativeProgram",
    "available_isas",
    "instruction_sets",
    "peak_flops",
    "read_bandwidth_bytes_per_s",
]
