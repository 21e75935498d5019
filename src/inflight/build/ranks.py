"""Start, join and end the processes of the other ranks while an engine is built for several devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from inflight.build.limits import Limits
from inflight.config.setting import SettingsError
from inflight.execution.backends.protocol import Device, KVShape
from inflight.execution.backends.torch.device import DeviceError, check_ranks
from inflight.execution.computing import ComputedModel, KernelModel
from inflight.execution.memory import MachineMemory, memory_of
from inflight.execution.parallel.messages import PeerLost, WorkerFault
from inflight.execution.runner import ModelRunner

if TYPE_CHECKING:
    from inflight.execution.parallel.executor import ParallelExecutor
    from inflight.execution.parallel.workers import Workers


def start_workers(computed: ComputedModel, shape: KVShape, limits: Limits, ranks: int) -> Workers | None:
    """Start the other ranks, which begin to load; None for one rank. Raises SettingsError where devices are missing."""
    if ranks == 1:
        return None
    from inflight.execution.parallel.messages import Setup
    from inflight.execution.parallel.workers import Workers

    assert isinstance(computed, KernelModel)
    device = limits.device
    if device == "cpu" and os.environ.get("INFLIGHT_ISA") != "torch":
        raise SettingsError(
            f"--tensor-parallel-size is {ranks}, which is for GPUs, but the device is the CPU "
            f"({limits.resolved['device'].reason}); leave it out."
        )
    if device != "cpu":
        try:
            check_ranks(device, ranks)
        except DeviceError as error:
            raise SettingsError(str(error)) from None
    setup = Setup(
        computed,
        limits.number_format,
        limits.num_threads,
        limits.max_model_len,
        limits.max_tokens,
        limits.logit_rows,
        shape,
    )
    return Workers(setup, ranks)


@contextmanager
def closed_by_a_fault(workers: Workers | None) -> Iterator[None]:
    """Close the workers when the start of an engine fails. Raises SettingsError where they are the cause."""
    try:
        yield
    except BaseException as fault:
        if workers is not None:
            workers.close()
        if isinstance(fault, WorkerFault | PeerLost):
            raise SettingsError(f"The model could not be loaded by all ranks. {fault}") from fault
        raise


def min_memory(backend: Device, workers: Workers | None, ranks: int) -> MachineMemory:
    """Return the memory of the rank that has the least, once all have loaded."""
    memory = memory_of(backend)
    if workers is None:
        return memory
    available = min(memory.available, workers.await_loaded())
    if backend.own_memory() is None:  # all share the machine's
        available //= ranks
    return replace(memory, available=available)


def with_workers(runner: ModelRunner, workers: Workers | None) -> ModelRunner | ParallelExecutor:
    """Begin to serve with the other ranks, where there are any."""
    if workers is None:
        return runner
    from inflight.execution.parallel.executor import ParallelExecutor

    workers.begin(runner.capacity)
    return ParallelExecutor(runner, workers)
