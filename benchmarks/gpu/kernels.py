"""Kernels beside the definitions of their operations: whether both compute the same, at sizes that numpy computes soon;
and how long a kernel takes beside the ceiling, at those of served models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu.cases import FULL, TINY, Case, Numbers, cases
from benchmarks.gpu.device import MeasuredDevice
from benchmarks.results import table
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.launcher import KernelLauncher, Launcher

_BOUND = {torch.bfloat16: 2e-2, torch.float32: 2e-4}  # of the largest number that should come out, by `act`
_SAME_TOKENS = 0.95  # of drawn ones: sums in another order move a boundary now and then


@dataclass(frozen=True, slots=True)
class Compared:
    """failure: the sentence of a kernel that could not be run. error: of its kind at small sizes, the largest, divided
    by the bound."""

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


def compare(device: MeasuredDevice, named: str = "") -> list[Compared]:
    """named: a regular expression that is found in the names of the cases to compare."""
    kernels, cpu = KernelLauncher(), torch.device("cpu")
    small = (cases(Numbers(one, device.act, drawn_on_cpu=True), TINY) for one in (device.device, cpu))
    errors: dict[str, float | str] = {}  # by kind
    for ours, theirs in zip(*small, strict=True):
        if re.search(named, ours.name):
            errors[_kind(ours)] = _worse(
                errors.get(_kind(ours), 0.0), _error(ours, theirs, kernels, _BOUND[device.act])
            )
    numbers, sizes = Numbers(device.device, device.act), FULL if device.is_gpu else TINY
    return [
        _measured(device, case, kernels, errors.get(_kind(case), 0.0))
        for case in cases(numbers, sizes)
        if re.search(named, case.name)
    ]


def comparison(found: Sequence[Compared]) -> str:
    """A sentence and a table."""
    wrong = [one.case for one in found if not one.is_right]
    sentence = f"{len(found) - len(wrong)} of {len(found)} kernels compute what the definitions do"
    sentence += "." if not wrong else f"; these do not: {'; '.join(wrong)}."
    head = ["kernel", "µs", "at best, µs", "share", "error"]
    return f"{sentence}\n\n{table(head, [one.cells() for one in found])}"


def _kind(case: Case) -> str:
    return re.sub(r"\d+ (tokens|experts)", r"\1", case.name).split(",")[0]


def _worse(one: float | str, other: float | str) -> float | str:
    """Return the larger error; a failure is worse than all."""
    if isinstance(one, str) or isinstance(other, str):
        return one if isinstance(one, str) else other
    return max(one, other)


def _error(ours: Case, theirs: Case, kernels: Launcher, bound: float) -> float | str:
    """Return how far a kernel is from the definition, divided by the bound; or the sentence that it failed with, which
    must not keep the others from being measured."""
    try:
        found, expected = [one.cpu() for one in _run(ours, kernels)], _run(theirs, Definitions())
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    bounds = [bound if one.is_floating_point() else 1 - _SAME_TOKENS for one in expected]
    return max(error / bound for error, bound in zip(_errors(found, expected), bounds, strict=True))


def _measured(device: MeasuredDevice, case: Case, kernels: Launcher, error: float | str) -> Compared:
    if isinstance(error, str):
        return Compared(case.name, 0, 0, 0, False, error)
    try:
        seconds = device.median(lambda: case.call(kernels, case.buffers))
    except Exception as failed:
        return Compared(case.name, 0, 0, 0, False, f"{type(failed).__name__}: {str(failed).splitlines()[0][:200]}")
    return Compared(case.name, seconds, device.rates.seconds(case.read, case.operations), error, error <= 1)


def _run(case: Case, launcher: Launcher) -> list[Tensor]:
    """On copies of its buffers."""
    return [one.clone() for one in case.call(launcher, tuple(one.clone() for one in case.buffers))]


def _errors(found: Sequence[Tensor], expected: Sequence[Tensor]) -> Iterator[float]:
    for ours, theirs in zip(found, expected, strict=True):
        if not theirs.is_floating_point():
            yield float((ours != theirs).float().mean())
            continue
        difference = (ours.float() - theirs.float()).abs().max()
        error = difference / theirs.float().abs().max().clamp(min=1e-30)
        yield float("inf") if error.isnan() else float(error)
