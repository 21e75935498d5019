"""A quantized checkpoint read as plain numbers: `--load-format dequantize`.

Kernels round what meets an int8 or int4 matrix to 8 bits, with one scale for each 32 inputs. That is little beside most
models' own error, but the smallest models have answers that hang on less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from inflight.execution.backends.matrices import Array, Matrix, Rows
from inflight.execution.checkpoints.packaged.catalogue import is_dequantized
from inflight.models.spec import ModelSpec

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource


def named_spec(spec: ModelSpec, name: str | None) -> ModelSpec:
    """Return how a model is held that is called so: without its quantization, where the catalogue says that."""
    return replace(spec, weight_format=None) if is_dequantized(name) else spec


class Dequantized:
    """A source whose matrices are numbers, whatever the one that it reads from holds."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """Return plain numbers of this shape. Raises ModelError where name or shape do not fit."""
        return self._source.tensor(name, shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Return the same as `tensor`."""
        return self._source.tensor(name, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Rows]:
        """Return the rows of a table that is only looked up, as the source holds them: no activation meets them."""
        return self._source.pieces(name, shape)

    def release(self, name: str) -> None:
        """Let go of the memory that reading a tensor took."""
        self._source.release(name)
