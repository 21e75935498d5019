"""Names of a prompt's blocks that are the same in every process: a hash of the block and of the name before it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

_BYTES = 8  # a router that mistakes one block for another in 2⁶⁴ loses a little time, and nothing else


def block_hashes(prompt: Sequence[int], block_size: int, salt: str = "") -> tuple[bytes, ...]:
    """Of whole blocks."""
    name, names = hashlib.blake2b(salt.encode(), digest_size=_BYTES).digest(), []
    numbers = memoryview(prompt if isinstance(prompt, bytes) else array("i", prompt))
    width, numbers = numbers.itemsize * block_size, numbers.cast("B")
    for start in range(0, len(numbers) - width + 1, width):
        name = hashlib.blake2b(name + numbers[start : start + width], digest_size=_BYTES).digest()
        names.append(name)
    return tuple(names)
