"""Kernels as compiled: sums of tiles stay in registers, and no set has instructions that it does not ask for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.execution.backends import native
from scripts.tile_spills import CROSS, Tile, built_objects, disassembler, tiles_in, tiles_of

NATIVE = Path(__file__).parents[1] / "native"
# Vectors that a tile may store to the stack in a pass of its innermost loops, by GCC: four steps of plain products, or
# a span of quantized ones, whose sums in float32 lie there while those in whole numbers are formed, where there are 16
# registers. A figure may only fall. The portable set looks codes up by way of the stack. Products by tile registers are
# not counted: the compiler does not allocate those, and sums of a span are written to memory on purpose.
BOUNDS = {"avx512_bf16": 0, "avx512_vnni": 0, "avx512": 18, "avx2_vnni": 39, "avx2": 64, "portable": 705}
CROSS_BOUNDS = {"neon_bf16": 1, "neon_dotprod": 1, "portable": 4}  # of what scripts/try_aarch64 compiled, if it did

# Of some features an instruction that no other one has.
INSTRUCTIONS = {
    "f16c": r"\tvcvtph2ps ",
    "fma": r"\tvfn?m(add|sub)\d+[ps]s ",
    "avx2": r"\tvp\w+ .*%ymm",
    "avx512f": r"%zmm",
    "avxvnni": r"\t\{vex\} vpdpbusds? .*%ymm",
    "avx512vnni": r"\t(\{evex\} )?vpdpbusds? .*%zmm",
    "avx512bf16": r"\tvdpbf16ps ",
    "amx-tile": r"\ttileloadd ",
    "amx-int8": r"\ttdpbsud ",
    "amx-bf16": r"\ttdpbf16ps ",
}

X86 = """
0000000000000000 <void inflight::avx2::tile<inflight::avx2::Floats, 6, 1, 0>(inflight::avx2::Work<X> const&)>:
   0:\tpush   %rbp
   1:\tmov    %rsp,%rbp
   4:\tvmovaps %ymm1,-0x30(%rbp)
   8:\tvmovaps %ymm2,0x20(%rax)
   c:\tvmovaps %ymm3,-0x50(%rbp)
  10:\tmov    %rcx,-0x58(%rbp)
  14:\tvmovaps -0x50(%rbp),%ymm4
  18:\tjne    8 <void inflight::avx2::tile<inflight::avx2::Floats, 6, 1, 0>(x)+0x8>
  1c:\tvmovups %xmm5,(%rsp)
  20:\tvmovdqa %ymm5,0x40(%rsp,%rax,1)
  24:\tjmp    4 <void inflight::avx2::tile<inflight::avx2::Floats, 6, 1, 0>(x)+0x4>
  28:\tvmovaps %ymm6,-0x30(%rbp)
  2c:\tret

0000000000000000 <void inflight::avx2::other<inflight::avx2::Floats>()>:
   0:\tvmovaps %ymm1,-0x30(%rsp)
   4:\tjne    0 <void inflight::avx2::other<inflight::avx2::Floats>()>

0000000000000000 <void inflight::avx512::tile_of_spans<inflight::avx512::Nibbles, 1, 2, 1>(x)>:
   0:\tvmovaps %zmm1,-0x30(%rbp)
   4:\tjne    0 <void inflight::avx512::tile_of_spans<inflight::avx512::Nibbles, 1, 2, 1>(x)>
"""

ARM = """
0000000000000040 <void inflight::dotprod::tile<inflight::dotprod::Floats, 5, 1, 0>(x)>:
  40:\tstp\tx29, x30, [sp, #-16]!
  44:\tstr\tq0, [sp, #32]
  48:\tstr\tq1, [x3, #32]
  4c:\tstp\tq8, q9, [x29, #64]
  50:\tb.ne\t44 <void inflight::dotprod::tile<inflight::dotprod::Floats, 5, 1, 0>(x)+0x4>  // b.any
  54:\tstp\td8, d9, [sp, #64]
  58:\tret
"""


def current_build(objects: list[Path], objdump: str | None) -> Path:
    """Return the folder in which these sources were compiled by GCC, for all instruction sets or some."""
    if objdump is None:
        pytest.skip("neither objdump nor llvm-objdump is here to read the compiled kernels")
    if not objects:
        pytest.skip(
            "this checkout's kernels were not built here; ./check builds them where there is no environment yet"
        )
    folder = next(one.parent for one in objects[0].parents if one.name == "CMakeFiles")
    current = subprocess.run([sys.executable, NATIVE / "sources_hash.py"], capture_output=True, text=True, check=True)
    if (folder / "_native.sources").read_text().strip() != current.stdout.strip():
        pytest.skip(f"{folder} was built of other sources than these")
    (compiler,) = folder.glob("CMakeFiles/*/CMakeCXXCompiler.cmake")
    if 'CMAKE_CXX_COMPILER_ID "GNU"' not in compiler.read_text():
        pytest.skip("what is expected is what GCC makes of the kernels")
    return folder


@pytest.fixture
def build() -> Path:
    return current_build(built_objects(), disassembler())


def test_vectors_that_are_stored_to_the_stack_in_loops_are_counted() -> None:
    framed, frameless = tiles_in(X86)
    assert (framed.isa, framed.name, framed.inner, framed.outer) == ("avx2", "tile<Floats, 6, 1, 0>", 1, 3)
    assert (frameless.isa, frameless.name) == ("avx512", "tile_of_spans<Nibbles, 1, 2, 1>")
    assert frameless.inner == 0, "without a frame that register is one like others"
    (arm,) = tiles_in(ARM)
    assert (arm.isa, arm.inner, arm.outer) == ("dotprod", 2, 0)


def assert_within(tiles: list[Tile], bounds: dict[str, int]) -> None:
    spilled = [one for one in tiles if one.inner > bounds[one.isa]]
    assert not spilled, "a tile has more sums than registers: python scripts/tile_spills.py lists them"
    assert len(tiles) >= 10 * len({one.isa for one in tiles}), "tiles are found by their name"


def test_compiled_tiles_keep_their_sums_in_registers(build: Path) -> None:
    assert_within(tiles_of(built_objects(), str(disassembler())), BOUNDS)


def test_tiles_for_aarch64_keep_their_sums_in_registers() -> None:
    objects, objdump = built_objects(CROSS), disassembler("aarch64-linux-gnu-")
    current_build(objects, objdump)
    assert_within(tiles_of(objects, str(objdump)), CROSS_BOUNDS)


def test_a_kernel_has_no_instructions_of_features_that_its_set_does_not_ask_for(build: Path) -> None:
    needs = {one.name: {*one.needs} for one in native.instruction_sets()}
    checked = set()
    for file in built_objects():
        *_, target = (part for part in file.parts if part.endswith(".dir"))
        isa, _, kind = target.removesuffix(".dir").rpartition("_")
        if isa not in needs or kind == "":
            continue
        command = [str(disassembler()), "-d", "--no-show-raw-insn", file]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for feature, pattern in INSTRUCTIONS.items():
            if re.search(pattern, text):
                checked.add(feature)
                assert feature in needs[isa], (isa, kind)
    assert checked >= {"f16c"} or not any("f16c" in one for one in needs.values())
