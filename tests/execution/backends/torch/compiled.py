"""Kernels compiled ahead of time for GPUs that are not there: whether they compile, and what they take of one.

A test calls a launcher with tensors of the device "meta", which have shapes and no numbers. The kernels that it would
launch are noted instead (`launches`), and compiled with the very types, constants and options of that call:

    def test_what_a_norm_takes(compiler):
        x, out = torch.empty(4, 4096, device="meta"), torch.empty(4, 4096, dtype=torch.bfloat16, device="meta")
        compiler.fits(lambda: kernels.rms_norm(x, x[0], 1e-6, out), registers=64, shared=1024)

That takes neither GPU nor driver, but a process of its own, whose triton compiles where the tests' interprets (see
`conftest`); it starts when a test first asks for it. A kernel's first compilation takes a second or two, later ones
come from Triton's cache.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import BaseBackend, GPUTarget

from .launches import Argument, Launch, launches

ARCHS = (80, 90, 100)  # compute capability, times ten


@dataclass(frozen=True)
class Compiled:
    """One kernel on one architecture. Bytes: `spilled` of a thread, in local memory; `shared` of a block."""

    name: str
    arch: int
    registers: int
    spilled: int
    shared: int
    ptx: str


class Compiler:
    """The process that compiles for one architecture. `./check` takes one of them, `./check --all` all (`conftest`)."""

    def __init__(self, arch: int) -> None:
        self.arch = arch
        self._process: subprocess.Popen[str] | None = None

    def fits(
        self, call: Callable[[], object], registers: int, shared: int, archs: Sequence[int] = ARCHS, spilled: int = 0
    ) -> None:
        """Asserts that `call` launches a kernel, and that none takes more than these, or spills more; if what is said
        holds for this architecture."""
        if self.arch not in archs:
            return
        found = self.compile(call)
        assert found
        for one in found:
            taken = f"{one.name} on sm_{one.arch}: {one.registers} registers, {one.shared} bytes, {one.spilled} spilled"
            assert one.registers <= registers and one.shared <= shared and one.spilled <= spilled, taken

    def compile(self, call: Callable[[], object]) -> list[Compiled]:
        """Every kernel that `call` launches. Raises RuntimeError for one that does not compile."""
        return [self._compiled(launch) for launch in launches(call)]

    def _compiled(self, launch: Launch) -> Compiled:
        process = self._process = self._process or _started()
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps({"launch": asdict(launch), "arch": self.arch}), file=process.stdin, flush=True)
        answer = json.loads(process.stdout.readline() or '{"failed": "the process that compiles has ended"}')
        if "failed" in answer:
            raise RuntimeError(f"{launch.name} does not compile for sm_{self.arch}: {answer['failed']}")
        return Compiled(**answer)

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


def _started() -> subprocess.Popen[str]:
    """On the other half of this file."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=Path(__file__).parents[__name__.count(".")],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = asdict(_compile(request["launch"], request["arch"]))
        except Exception as error:  # reported to the test
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def _compile(launch: dict[str, Any], arch: int) -> Compiled:
    kernel = getattr(importlib.import_module(launch["module"]), launch["name"])
    arguments = {name: Argument(**fields) for name, fields in launch["arguments"].items()}
    source = triton.compiler.ASTSource(
        kernel,
        {name: one.type for name, one in arguments.items()},
        {name: _constant(one) for name, one in arguments.items() if one.type == "constexpr"},
        {
            (kernel.arg_names.index(name),): BaseBackend.parse_attr(one.divisible)
            for name, one in arguments.items()
            if one.divisible
        },
    )
    found = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=launch["options"])
    registers, spilled = _resources(found.asm["cubin"])
    return Compiled(launch["name"], arch, registers, spilled, found.metadata.shared, found.asm["ptx"])


def _constant(argument: Argument) -> Any:
    if argument.format is not None:
        return tl.dtype(argument.format)
    if argument.kernel is not None:
        module, name = argument.kernel
        return getattr(importlib.import_module(module), name)
    return argument.value


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory, of each thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ((registers, stack, local),) = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", text)
    return int(registers), int(stack) + int(local)


if __name__ == "__main__":
    _serve()
