"""An operation of a forward pass, and programs of them: a pass recorded once, as data.

A mixer or an MLP calls operations on a `Program`, which notes them with their arguments. A backend compiles the program
when a model's weights are bound, and each pass runs the compiled program in one call. The arguments are therefore the
same in every pass: activations, packed weights, numbers of layers, constants. Each pass brings its own tokens, their
positions and block tables, the states of recurrent layers, and the rows that `gather` and `mean` read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec

P = ParamSpec("P")
Kind = Literal["act", "float32"]
RowCount = Literal["read", "places", "texts"]
Activation = Any  # a backend's memory for rows of numbers


class Call(NamedTuple):
    """An operation with all of its arguments, in the order of its signature."""

    operation: Operation[...]
    arguments: tuple[Any, ...]


class Program:
    """Operations in the order in which a pass runs them."""

    def __init__(self, workspace: Workspace | None = None) -> None:
        """Begin an empty program. workspace: where its activations come from."""
        self.calls: list[Call] = []
        self._workspace = workspace

    def take(self, name: str, width: int, kind: Kind = "act") -> Activation:
        """Return the workspace's activation of that name, width and kind."""
        assert self._workspace is not None, "for programs over a workspace"
        return self._workspace.take(name, width, kind)

    @classmethod
    def joined(cls, programs: Iterable[Program]) -> Program:
        """Return one program of several, one behind the other."""
        whole = cls()
        for one in programs:
            whole.calls += one.calls
        return whole

    def __iter__(self) -> Iterator[Call]:
        return iter(self.calls)


class Operation(Generic[P]):
    """An operation that backends implement under its name.

    Attributes:
        name: Its name, which its functions in backends have too (`native/pass/operations.h`, `torch/kernels`).
        file: The name of the definition's file, and of that in `torch/kernels`.
        definition: Its function in numpy. The first parameter is the pass that it runs in.
        rows: What says how many rows it writes: the first activation it reads (or the pass's tokens), or the `places`
            or `texts` of the run.
    """

    def __init__(self, definition: Callable[Concatenate[Any, P], None], rows: RowCount = "read") -> None:
        self.name = definition.__name__
        self.file = str(definition.__module__).rpartition(".")[2]
        self.definition, self.rows = definition, rows
        self.__doc__ = definition.__doc__
        self.signature = inspect.signature(definition)

    def __call__(self, program: Program, *arguments: P.args, **named: P.kwargs) -> None:
        """Append the operation to the program."""
        bound = self.signature.bind(program, *arguments, **named)
        bound.apply_defaults()
        program.calls.append(Call(self, bound.args[1:]))

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


OPERATIONS: dict[str, Operation[...]] = {}


def operation(rows: RowCount = "read") -> Callable[[Callable[Concatenate[Any, P], None]], Operation[P]]:
    """Return a decorator that registers a function as the definition of the operation of its name. rows: as of
    `Operation`. The decorator raises ValueError for a second definition."""

    def register(definition: Callable[Concatenate[Any, P], None]) -> Operation[P]:
        if definition.__name__ in OPERATIONS:
            raise ValueError(f"there is an operation {definition.__name__!r} already")
        made = Operation(definition, rows)
        OPERATIONS[made.name] = made
        return made

    return register


class Workspace:
    """The activations of programs that run one after the other over the same number of rows.

    What is taken by the same name, width and kind is the same memory, so that layers of one kind share theirs: what a
    layer leaves there is not read after it.
    """

    def __init__(self, new_activation: Callable[[int, int, Kind], Activation], max_rows: int) -> None:
        """new_activation: a backend's `activation`. max_rows: of a pass."""
        self._new_activation, self._max_rows = new_activation, max_rows
        self._taken: dict[tuple[str, int, Kind], Activation] = {}

    def take(self, name: str, width: int, kind: Kind = "act") -> Activation:
        """Return memory for `width` numbers in each row."""
        if (name, width, kind) not in self._taken:
            self._taken[name, width, kind] = self._new_activation(self._max_rows, width, kind)
        return self._taken[name, width, kind]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._taken.values())
