"""How operations are launched: programs with their activations as tensors, and each operation by its kernel.

A program is compiled once: which of its arguments are activations, and which of these are written, is then known. An
operation's launch function has its name, and is in the file of `kernels` that is named as its definition's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from inflight.execution.backends.torch.device import DeviceError, first_line
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.memory import DeviceActivation
from inflight.execution.backends.torch.sampling_tensors import Drawn, Draws, Scores
from inflight.execution.backends.torch.tensors import PassTensors
from inflight.execution.program import Call, Operation, Program

_KERNELS = "inflight.execution.backends.torch.kernels"


class Launcher(Protocol):
    """Launches work on a device."""

    def launch(self, operation: Operation[...], on: DevicePass, arguments: Sequence[Any]) -> None:
        """Launch an operation, whose activations are tensors; outputs are written in place. Raises DeviceError for an
        operation that the device does not have."""

    def begin(self, appended: Tensor, tokens: Tensor, pass_: PassTensors) -> None:
        """Before a pass: write appended int32[N, 4], of N blocks that request slots get their group, slot, index in the
        table and number, into `pass_.block_tables`; and look up `pass_.token_ids` among the tokens of all slots,
        int32[slots, longest sequence + 1]."""

    def sample(self, logits: Tensor, draws: Draws) -> Drawn:
        """logits float32[S, V], which may be overwritten."""

    def score(self, logits: Tensor, token_ids: Tensor, top_logprobs: int) -> Scores:
        """Log-probabilities of token_ids int32[S] from logits float32[S, V], with as many alternatives each."""


class TensorCall(NamedTuple):
    """An operation of a program.

    Attributes:
        reads: Which of its arguments are activations that are read, by index.
        writes: Which are written.
        counted: What its rows are as many as: "tokens", "places" or "texts". None: the rows of the first that is read.
    """

    operation: Operation[...]
    arguments: tuple[Any, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    counted: str | None

    @classmethod
    def of(cls, call: Call) -> TensorCall:
        names = list(call.operation.signature.parameters)[1:]
        found = [at for at, argument in enumerate(call.arguments) if isinstance(argument, DeviceActivation)]
        writes = tuple(at for at in found if names[at] == "out" or names[at].endswith("_out"))
        reads = tuple(at for at in found if at not in writes)
        by_index = call.operation.rows != "read"
        return cls(*call, reads, writes, call.operation.rows if by_index else None if reads else "tokens")

    def tensors(self, counts: Mapping[str, int]) -> list[Any]:
        """Return the arguments with the rows of activations that are read and written. counts: of tokens, places and
        texts. Rows at places and in texts are read of all that there are: a replayed graph does not update how many
        rows of an activation are written."""
        _, arguments, reads, writes, counted = self
        given = list(arguments)
        rows = given[reads[0]].rows if counted is None else counts[counted]
        for at in reads:
            given[at] = given[at].written if counted is None else given[at].tensor
        for at in writes:
            given[at] = given[at].take(rows)
        return given


def compiled(program: Program) -> tuple[TensorCall, ...]:
    """Return a program as a pass runs it."""
    return tuple(map(TensorCall.of, program))


class KernelLauncher:
    """Launches operations by their functions in `kernels`, most of which are Triton's."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def launch(self, operation: Operation[...], on: DevicePass, arguments: Sequence[Any]) -> None:
        self._call(operation.name, operation.file, on, *arguments)

    def begin(self, appended: Tensor, tokens: Tensor, pass_: PassTensors) -> None:
        self._call("begin", "begin", appended, tokens, pass_)

    def sample(self, logits: Tensor, draws: Draws) -> Drawn:
        drawn: Drawn = self._call("sample", "sampling", logits, draws)
        return drawn

    def score(self, logits: Tensor, token_ids: Tensor, top_logprobs: int) -> Scores:
        scores: Scores = self._call("score", "logprobs", logits, token_ids, top_logprobs)
        return scores

    def _call(self, name: str, file: str, *arguments: Any) -> Any:
        """Call a launch function. A kernel is compiled when it is first launched, for the GPU that is there. Raises
        DeviceError with the reason where that fails."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = launch_function(name, file)
        try:
            return function(*arguments)
        except Exception as error:
            if not _is_of_compiling(error):
                raise
            raise DeviceError(
                f"The kernel of {name} does not compile for this GPU ({first_line(error)}); a newer driver or Triton "
                "may take it, or run on --device cpu."
            ) from error


def launch_function(name: str, file: str) -> Callable[..., Any]:
    """Return the function that launches an operation. Raises DeviceError for an operation without one."""
    module = f"{_KERNELS}.{file}"
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != module:
            raise
        raise DeviceError(
            f"The operation {name} has no kernel for GPUs (kernels/{file}.py has no {name}); run on --device cpu."
        ) from None
    return found


def _is_of_compiling(error: Exception) -> bool:
    """Return whether a kernel was not compiled: Triton has errors of its own; from the compiler below it comes a
    RuntimeError with this text."""
    from triton.errors import TritonError

    return isinstance(error, TritonError) or (isinstance(error, RuntimeError) and "PassManager" in str(error))
