"""Fixtures of the tests of operations on a device.

Without a GPU kernels run in Triton's interpreter, in this process (`tests/conftest.py` asks for it). The interpreter is
right for float32 and float16, and silently wrong where it rounds to bfloat16 or fp8 or multiplies these; such kernels
are compiled instead (`compiled`). With a GPU, TRITON_INTERPRET=0 runs the same tests on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from breadth import first_of

torch.set_num_threads(1)  # many tests share the cores, and threads that wait for one another spin

try:
    import triton
except ImportError:  # there are no wheels for every machine
    collect_ignore_glob = ["test_kernels*.py"]
else:
    from .compiled import Compiler
    from .interpreted import mend_interpreter

    if triton.knobs.runtime.interpret:
        mend_interpreter()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run: the CPU if they are interpreted."""
    return torch.device("cpu") if triton.knobs.runtime.interpret else torch.device("cuda", 0)


@pytest.fixture(params=[torch.float32, torch.float16], ids=["float32", "float16"])
def act(request: pytest.FixtureRequest) -> torch.dtype:
    """Formats of activations that the interpreter computes rightly."""
    return request.param


@pytest.fixture(scope="session", params=first_of([90, 80, 100]), ids="sm_{}".format)
def compiler(request: pytest.FixtureRequest) -> Iterator[Compiler]:
    started = Compiler(request.param)
    yield started
    started.close()
