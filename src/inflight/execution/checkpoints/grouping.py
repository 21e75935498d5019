"""Which inputs of a packed matrix share a scale: by their place, or as a list says.

Knows the bounds that a group has here, and the sentences for groups that contradict each other.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.matrices import GROUPS, Array
from inflight.execution.checkpoints.tensors import Tensors
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat

_AGAIN = "take the config.json that belongs to this checkpoint, or another quantization of the model."


def group_count(tensors: Tensors, scales: str, axis: int, inputs: int, format: WeightFormat) -> int:
    """Return the number of groups along the inputs, from the shape of the scales. Raises ModelError where they do not
    divide the inputs, are too small, or are not those of config.json."""
    shape = tensors.shape(scales)
    count = shape[axis] if len(shape) == 2 else 0
    if count < 1 or inputs % count:
        raise ModelError(
            f"tensor {scales!r} has shape {list(shape)}, whose groups do not divide the {inputs} inputs that "
            f"config.json asks for; {_AGAIN}"
        )
    size, given = inputs // count, format.group_size
    if given is not None and size != min(given, inputs):
        raise ModelError(
            f"tensor {scales!r} has {count} groups of {size} of the {inputs} inputs, but config.json says groups of "
            f"{given}; {_AGAIN}"
        )
    if format.bits == 4 and size % GROUPS[-1]:
        raise ModelError(
            f"tensor {scales!r} has groups of {size} inputs; in 4 bits, groups of a multiple of {GROUPS[-1]} are "
            f"supported; {_AGAIN}"
        )
    return count


def by_place(inputs: int, count: int) -> Array:
    """int32[inputs]."""
    return np.repeat(np.arange(count, dtype=np.int32), inputs // count)


def listed(tensors: Tensors, name: str, inputs: int, count: int) -> Array:
    """Return the group of each input, int32[inputs], as the tensor `name` lists them; without it, equal runs. Raises
    ModelError for a group that does not exist, and for groups of different sizes."""
    if name not in tensors:
        return by_place(inputs, count)
    found = tensors.stored(name, ("I32", "I64"), (inputs,))
    least, most = int(found.min()), int(found.max())
    if least < 0 or most >= count:
        raise ModelError(
            f"tensor {name!r} places inputs in groups {least} to {most}, but there are {count} groups, from 0; {_AGAIN}"
        )
    sizes = np.bincount(found, minlength=count)
    if sizes.min() != sizes.max():
        raise ModelError(
            f"tensor {name!r} makes groups of {sizes.min()} to {sizes.max()} inputs, where all {count} must have "
            f"{inputs // count}; {_AGAIN}"
        )
    return found.astype(np.int32)


def check_divides(what: str, count: int, by: int, module: str) -> None:
    """Raise ModelError where packed words would be cut."""
    if count % by:
        raise ModelError(
            f"{module} has {count} {what}, but words of packed weights hold {by}; take the config.json that belongs to "
            "this checkpoint."
        )
