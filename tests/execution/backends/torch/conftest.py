"""What the tests of the operations on a device share.

Without a GPU kernels run in Triton's interpreter, in this process: it is asked for here, since triton looks once, when
it is imported. The interpreter is right for float32 and float16, and silently wrong for products in bfloat16, which are
compiled instead (`compiled`). With a GPU, TRITON_INTERPRET=0 runs the same tests on it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

assert "triton" not in sys.modules or "TRITON_INTERPRET" in os.environ, (
    "triton is imported before it is told how to run"
)
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest  # noqa: E402
import torch  # noqa: E402

try:
    import triton
except ImportError:  # there are no wheels for every machine
    collect_ignore_glob = ["test_kernels*.py"]
else:
    from .compiled import Compiler
    from .interpreted import accept_computed_bounds

    if triton.knobs.runtime.interpret:
        accept_computed_bounds()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run: the CPU if they are interpreted."""
    return torch.device("cpu" if triton.knobs.runtime.interpret else "cuda")


@pytest.fixture(params=[torch.float32, torch.float16], ids=["float32", "float16"])
def act(request: pytest.FixtureRequest) -> torch.dtype:
    """Formats of activations that the interpreter computes rightly."""
    return request.param


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    started = Compiler()
    yield started
    started.close()
