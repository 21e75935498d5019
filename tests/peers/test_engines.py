"""The description of a copy and of the machine."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy

from benchmarks.peers import load
from benchmarks.peers.checkpoints import Checkpoints, Environments
from benchmarks.peers.engines import FOUR_BITS, PRECISIONS, inflight, llama_cpp, with_file
from benchmarks.peers.quantize_gguf import KINDS


def write(path: Path, **types: gguf.GGMLQuantizationType) -> None:
    """One matrix of each type, 64 by 64."""
    path.parent.mkdir(parents=True)
    writer = gguf.GGUFWriter(path, "llama")
    for name, kind in types.items():
        data = gguf.quants.quantize(numpy.ones((64, 64), dtype=numpy.float32), kind)
        writer.add_tensor(name.replace("__", "."), data, raw_dtype=kind)
    writer.add_tensor("blk.0.attn_norm.weight", numpy.ones(64, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_file_says_how_its_matrices_are_held(tmp_path: Path) -> None:
    kinds = gguf.GGMLQuantizationType
    environments = Environments(*(tmp_path / name / "bin/python" for name in ("llama", "openvino", "onnxruntime")))
    checkpoints = Checkpoints(tmp_path, {}, environments)
    write(
        tmp_path / "gguf-Q4_0/Q4_0.gguf",
        blk__0__a=kinds.Q4_0, blk__0__b=kinds.Q4_0, blk__1__a=kinds.Q4_0, blk__1__b=kinds.Q5_0,
        token_embd__weight=kinds.Q8_0,
    )  # fmt: skip
    write(
        tmp_path / "gguf-Q4_K_M/Q4_K_M.gguf",
        blk__0__a=kinds.Q4_0, token_embd__weight=kinds.Q4_0, output__weight=kinds.Q5_1,
    )  # fmt: skip
    ours, theirs = inflight(checkpoints, tmp_path), llama_cpp(checkpoints, environments)
    tied, own = theirs.models["q4_0"](), theirs.models["q4_k_m"]()
    assert (tied.weights, tied.output) == ("Q4_0 75%, Q5_0 25%", "Q8_0")
    assert (own.weights, own.output) == ("Q4_0", "Q5_1")
    held = ours.models["q4_0"]()
    assert (held.weights, held.output) == ("Q4_0 75%, Q5_0 as int8 25%", "Q8_0 as int8")
    assert held.place == tied.place == tmp_path / "gguf-Q4_0/Q4_0.gguf", "the very same file"
    trained = [with_file(one, held.place).models["file"]() for one in (ours, theirs)]
    assert trained == [held, tied]


def test_every_precision_has_a_copy_for_both(tmp_path: Path) -> None:
    environments = Environments(tmp_path, tmp_path, tmp_path)
    checkpoints = Checkpoints(tmp_path, {}, environments)
    ours, theirs = inflight(checkpoints, tmp_path), llama_cpp(checkpoints, environments)
    assert set(ours.models) == set(theirs.models) == set(PRECISIONS) - {"file"}
    assert set(FOUR_BITS) < set(with_file(ours, tmp_path).models)
    assert "Q4_0-pure" in KINDS and "Q4_0-bf16" in KINDS


def test_how_busy_the_cores_are_is_the_share_of_their_ticks() -> None:
    before = "cpu  10 0 10 60 20 0 0 0 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    after = "cpu  30 2 14 90 22 1 1 2 9 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n"
    busy, whole = (b - a for a, b in zip(load._ticks(before), load._ticks(after), strict=True))
    assert (busy, whole) == (20 + 2 + 4 + 1 + 1 + 2, 62)
    assert 0 <= load.busy_share(0.01) <= 1
