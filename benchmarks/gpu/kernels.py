"""Kernels beside their references: whether both compute the same, and how long a kernel takes beside the ceiling."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu.cases import FULL, TINY, Case, Numbers, cases
from benchmarks.gpu.device import MeasuredDevice
from benchmarks.results import table
from inflight.execution.backends.torch.operations import DeviceOperations

_BOUND = {torch.bfloat16: 2e-2, torch.float32: 2e-4}  # of the largest number that should come out, by `act`
_SAME_TOKENS = 0.95  # of drawn ones: sums in another order move a boundary now and then


@dataclass(frozen=True, slots=True)
class Compared:
    """failure: the sentence of a kernel that could not be run. error: the largest, beside the largest number; of tokens
    the share that differ."""

    case: str
    seconds: float
    ceiling: float
    error: float
    is_right: bool
    failure: str | None = None

    def cells(self) -> list[object]:
        if self.failure is not None:
            return [self.case, "-", "-", "-", f"failed: {self.failure}"]
        right = "" if self.is_right else " **wrong**"
        share = f"{self.ceiling / self.seconds:.2f}" if self.ceiling else "-"
        return [
            self.case,
            f"{self.seconds * 1e6:,.1f}",
            f"{self.ceiling * 1e6:,.1f}",
            share,
            f"{self.error:.1e}{right}",
        ]


def compare(
    device: MeasuredDevice, kernels: DeviceOperations, eager: DeviceOperations, named: str = ""
) -> list[Compared]:
    """named: a regular expression that is found in the names of the cases to compare."""
    numbers, sizes = Numbers(device.device, device.act), FULL if device.is_gpu else TINY
    return [_compared(device, case, kernels, eager) for case in cases(numbers, sizes) if re.search(named, case.name)]


def comparison(found: Sequence[Compared]) -> str:
    """A sentence and a table."""
    wrong = [one.case for one in found if not one.is_right]
    sentence = f"{len(found) - len(wrong)} of {len(found)} kernels compute what PyTorch's own operations do"
    sentence += "." if not wrong else f"; these do not: {'; '.join(wrong)}."
    head = ["kernel", "µs", "at best, µs", "share", "error"]
    return f"{sentence}\n\n{table(head, [one.cells() for one in found])}"


def _compared(device: MeasuredDevice, case: Case, kernels: DeviceOperations, eager: DeviceOperations) -> Compared:
    """A kernel that fails must not keep the others from being measured: the page says what it failed with."""
    try:
        expected = _run(case, eager)
        found = _run(case, kernels)
        errors = list(_errors(found, expected))
        seconds = device.median(lambda: case.call(kernels, case.buffers))
    except Exception as error:
        return Compared(case.name, 0, 0, 0, False, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
    ceiling = device.rates.seconds(case.read, case.operations)
    bounds = [_BOUND[device.act] if one.is_floating_point() else 1 - _SAME_TOKENS for one in expected]
    is_right = all(error <= bound for error, bound in zip(errors, bounds, strict=True))
    return Compared(case.name, seconds, ceiling, max(errors), is_right)


def _run(case: Case, operations: DeviceOperations) -> list[Tensor]:
    """On copies of its buffers."""
    return [one.clone() for one in case.call(operations, tuple(one.clone() for one in case.buffers))]


def _errors(found: Sequence[Tensor], expected: Sequence[Tensor]) -> Iterator[float]:
    for ours, theirs in zip(found, expected, strict=True):
        if not theirs.is_floating_point():
            yield float((ours != theirs).float().mean())
            continue
        difference = (ours.float() - theirs.float()).abs().max()
        error = difference / theirs.float().abs().max().clamp(min=1e-30)
        yield float("inf") if error.isnan() else float(error)
