"""Count the stores to the stack in the loops of compiled product tiles: `python scripts/tile_spills.py [OBJECT…]`.

A tile keeps its sums in registers. Where it has more of them than there are registers, the compiler writes some to the
stack at every step, which costs a third of its speed and changes no result. Without arguments the objects of this
checkout's last build are read. The table has, for each tile that spills, the vectors that it stores in one pass of its
innermost loops and of the loops around them. Reads the disassembly of GNU objdump or LLVM's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUILDS = Path(__file__).parents[1] / "build"
CROSS = "aarch64/native"  # what scripts/try_aarch64 compiles
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)[ \t]*(.*)$", re.MULTILINE)
_TILE = re.compile(r"inflight::(\w+)::(tile\w*<.*>)\(")
_BRANCH_TARGET = re.compile(r"\b(?:0x)?([0-9a-f]+) <")
_X86_STORE = re.compile(r"v?mov\w*$")
_X86_STACK = {
    framed: re.compile(rf"^%[xyz]mm\d+,[^,]*\(%r{'(sp|bp)' if framed else 'sp'}\b") for framed in (False, True)
}
_ARM_STORE = re.compile(r"(st[rp]|stur)$")
_ARM_STACK = re.compile(r"[qdsv]\d+\b.*\[(sp|x29)\b")


@dataclass(frozen=True, slots=True)
class Tile:
    """A compiled tile, and what of it goes to the stack.

    Attributes:
        isa: The instruction set's name.
        name: As C++ spells it, without namespaces: `tile<Floats, 6, 1, 0>`.
        inner: Vectors stored to the stack in innermost loops, one pass of each counted.
        outer: The same in the loops around them.
    """

    isa: str
    name: str
    inner: int
    outer: int


@dataclass(frozen=True, slots=True)
class _Instruction:
    at: int
    name: str
    operands: str


def disassembler(prefix: str = "") -> str | None:
    """Return the path of objdump, GNU's or LLVM's, if there is one.

    Args:
        prefix: That of GNU's for another architecture.
    """
    return shutil.which(f"{prefix}objdump") or shutil.which("llvm-objdump")


def built_objects(folder: str = "*") -> list[Path]:
    """Return the kernels' objects of this checkout's last build; none where there was none.

    Args:
        folder: Where builds are, below the checkout's: those of this machine, or CROSS.
    """
    builds = sorted(BUILDS.glob(f"{folder}/_native.sources"), key=lambda file: file.stat().st_mtime)
    return sorted(builds[-1].parent.glob("CMakeFiles/*.dir/**/*.cpp.o")) if builds else []


def tiles_of(objects: list[Path], objdump: str) -> list[Tile]:
    """Return all tiles of some objects, in order."""
    command = [objdump, "-d", "--no-show-raw-insn", "-C", *map(str, objects)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(tiles_in(text), key=lambda tile: (tile.isa, tile.name))


def tiles_in(disassembly: str) -> Iterator[Tile]:
    """Yield the tiles of objdump's text."""
    for function in re.split(r"^(?=[0-9a-f]+ <.*>:$)", disassembly, flags=re.MULTILINE):
        first, _, rest = function.partition("\n")
        if found := _TILE.search(first):
            body = [_Instruction(int(at, 16), name, operands) for at, name, operands in _INSTRUCTION.findall(rest)]
            yield _counted(found[1], found[2].replace(f"inflight::{found[1]}::", ""), body)


def _counted(isa: str, name: str, body: list[_Instruction]) -> Tile:
    loops = [(target, one.at) for one in body if (target := _jumps_back(one)) is not None and target >= body[0].at]
    innermost = [
        (first, last)
        for first, last in loops
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in loops)
    ]
    # A frame pointer is one if the function makes it one: else the register is like any other.
    framed = any(one.operands == "%rsp,%rbp" for one in body)
    spills = [one.at for one in body if _stores_to_stack(one, framed)]
    inner = [at for at in spills if any(first <= at <= last for first, last in innermost)]
    outer = [at for at in spills if at not in inner and any(first <= at <= last for first, last in loops)]
    return Tile(isa, name, len(inner), len(outer))


def _jumps_back(one: _Instruction) -> int | None:
    """Return where a jump backwards goes to."""
    if not (one.name.startswith("j") or one.name.startswith(("b", "cb", "tb"))):
        return None
    found = _BRANCH_TARGET.search(one.operands)
    return int(found[1], 16) if found and int(found[1], 16) <= one.at else None


def _stores_to_stack(one: _Instruction, framed: bool) -> bool:
    """Whether a vector is stored relative to the stack's or the frame's pointer."""
    return bool(_X86_STORE.match(one.name) and _X86_STACK[framed].search(one.operands)) or bool(
        _ARM_STORE.match(one.name) and _ARM_STACK.match(one.operands)
    )


def main(arguments: list[str]) -> int:
    """Print what spills."""
    objdump, objects = disassembler(), [Path(one) for one in arguments] or built_objects()
    if objdump is None:
        print("Nothing here disassembles; install binutils or llvm.", file=sys.stderr)
        return 2
    if not objects:
        print(f"There are no objects below {BUILDS}; build first (./check does), or name some.", file=sys.stderr)
        return 2
    tiles = tiles_of(objects, objdump)
    print(
        f"{len(tiles)} tiles; vectors stored to the stack in a pass of the innermost loops, and of those around them:"
    )
    for one in tiles:
        if one.inner or one.outer:
            print(f"{one.isa:12} {one.inner:4} {one.outer:4}  {one.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
