"""Which function launches an operation on a GPU, and programs with activations as tensors."""

from __future__ import annotations

import inspect

import pytest
import torch

pytest.importorskip("triton")
from triton.errors import TritonError

from inflight.execution import ops
from inflight.execution.backends.torch import launcher
from inflight.execution.backends.torch.device import DeviceError
from inflight.execution.backends.torch.launcher import KernelLauncher, compiled, launch_function
from inflight.execution.backends.torch.memory import DeviceActivation
from inflight.execution.program import OPERATIONS, Operation, Program

from .launched import Given, launch


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_a_launch_function_with_its_arguments(name: str) -> None:
    operation = OPERATIONS[name]
    found = inspect.signature(launch_function(name, operation.file))
    arguments = [[(one.name, one.default) for one in of.parameters.values()] for of in (found, operation.signature)]
    assert arguments[0] == arguments[1]


def clip(on: object, x: object, limit: float) -> None:
    """An operation that no model has."""


def test_an_operation_without_a_kernel_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"clip has no kernel for GPUs \(kernels/test_launcher.py has no clip\)"):
        KernelLauncher().launch(Operation(clip), Given().over(), (torch.zeros(1, 1), 1.0))


@pytest.mark.parametrize("error", [TritonError("too many\nregisters"), RuntimeError("PassManager::run failed")])
def test_a_kernel_that_does_not_compile_ends_with_a_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def scale(on: object, x: object, factor: float) -> None:
        raise error

    monkeypatch.setattr(launcher, "launch_function", lambda name, file: scale)
    sentence = r"The kernel of scale does not compile for this GPU \(.*(too many|PassManager).*run on --device cpu"
    with pytest.raises(DeviceError, match=sentence):
        KernelLauncher().launch(ops.scale, Given().over(), (torch.zeros(1, 1), 1.0))


def test_other_errors_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def scale(on: object, x: object, factor: float) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(launcher, "launch_function", lambda name, file: scale)
    with pytest.raises(RuntimeError, match=r"^CUDA error: out of memory"):
        KernelLauncher().launch(ops.scale, Given().over(), (torch.zeros(1, 1), 1.0))


def test_rows_follow_from_what_is_read_or_from_the_run() -> None:
    x, out = (DeviceActivation(torch.zeros(9, 2)) for _ in range(2))
    program = Program()
    ops.clear(program, x)
    ops.to_act(program, x, out)
    ops.gather(program, x, out)
    ops.mean(program, x, out)
    counts = {"tokens": 4, "places": 2, "texts": 3}
    found = [[len(one) for one in call.tensors(counts)] for call in compiled(program)]
    assert found == [[4], [4, 4], [9, 2], [9, 3]]


def test_rows_that_several_operations_of_a_program_gather_are_sent_once() -> None:
    sent: list[list[int]] = []
    on = Given().over()
    send, on.send = on.send, lambda values: (sent.append(values.tolist()), send(values))[1]
    x, out = torch.arange(8.0).view(4, 2), torch.zeros(2, 2)
    for places in [[3, 1], [2, 0]]:
        on.begin_program(places, ())
        for _ in range(3):
            launch(ops.gather, on, x, out)
            assert torch.equal(out, x[places])
    assert sent == [[3, 1], [2, 0]]
