"""Quantized checkpoints: every format against its slow decoder, and what is missing or contradicts itself, named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.format_error import OUTLIERS, errors
from inflight.execution.backends.fp8 import E4M3
from inflight.execution.backends.int8 import quantize_groups
from inflight.execution.backends.matrices import Int4Matrix, Int8Matrix, ReorderedMatrix
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.models.errors import ModelError

from .formats import CASES, Tensors, gptq, packed, write_folder

NAME, MODULE, SHAPE = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj", (48, 96)


def written(folder: Path, case: str, shape: tuple[int, int] = SHAPE) -> tuple[Checkpoint, np.ndarray]:
    tensors, numbers = CASES[case].write(MODULE, *shape, np.random.default_rng(len(case)))
    tensors["model.norm.weight"] = ("F32", np.ones(8, np.float32))
    return Checkpoint(write_folder(folder, CASES[case].config, tensors)), numbers


@pytest.mark.parametrize("case", CASES)
def test_tensors_are_what_the_layout_says(case: str, tmp_path: Path) -> None:
    checkpoint, numbers = written(tmp_path, case)
    found = checkpoint.tensor(NAME, SHAPE)
    assert found.dtype == np.float32 and np.array_equal(found, numbers)
    assert NAME in checkpoint and "model.layers.1.mlp.up_proj.weight" not in checkpoint
    assert checkpoint.tensor("model.norm.weight", (8,)).tolist() == [1] * 8
    checkpoint.release(NAME)
    assert np.array_equal(checkpoint.tensor(NAME, SHAPE), numbers)


@pytest.mark.parametrize("case", CASES)
def test_matrices_are_exact_or_rounded_once_more_by_groups(case: str, tmp_path: Path) -> None:
    checkpoint, numbers = written(tmp_path, case)
    matrix = checkpoint.matrix(NAME, SHAPE)
    assert isinstance(matrix, Int4Matrix | Int8Matrix | ReorderedMatrix) and matrix.shape == SHAPE
    assert isinstance(matrix, ReorderedMatrix) == ("act-order" in case and "8 bits" not in case)
    if CASES[case].exact:
        assert np.array_equal(matrix.dequantized(), numbers)
        return
    assert isinstance(matrix, Int8Matrix)
    values, scales = quantize_groups(numbers, 32)
    assert np.array_equal(matrix.values, values) and np.array_equal(matrix.scales, scales)


def test_what_groups_and_offsets_a_backend_is_given(tmp_path: Path) -> None:
    groups = {"awq": 32, "awq, whole rows": 32, "gptq, symmetric": 16, "compressed-tensors, int4": 32}
    for case, group in groups.items():
        matrix = written(tmp_path / "a", case)[0].matrix(NAME, SHAPE)
        assert isinstance(matrix, Int4Matrix) and matrix.group == group
        assert (matrix.offsets is None) == ("awq" not in case)
    wide = written(tmp_path / "b", "awq, whole rows", (8, 384))[0].matrix(NAME, (8, 384))
    assert isinstance(wide, Int4Matrix) and wide.group == 128


def test_the_lowest_whole_number_is_held(tmp_path: Path) -> None:
    tensors, _ = CASES["compressed-tensors, int8"].write(MODULE, 2, 16, np.random.default_rng(0))
    tensors[f"{MODULE}.weight"] = ("I8", np.full((2, 16), -128))
    checkpoint = Checkpoint(write_folder(tmp_path, CASES["compressed-tensors, int8"].config, tensors))
    matrix = checkpoint.matrix(NAME, (2, 16))
    assert isinstance(matrix, Int8Matrix) and np.all(matrix.values == -128)
    assert np.array_equal(checkpoint.tensor(NAME, (2, 16)), matrix.dequantized())


def test_floats_of_8_bits_are_torchs() -> None:
    import torch

    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(E4M3, expected, equal_nan=True)


def test_a_text_part_says_how_it_is_quantized(tmp_path: Path) -> None:
    _, numbers = written(tmp_path, "gptq")
    for config in (
        {"text_config": {"quantization_config": CASES["gptq"].config}},
        {"text_config": {"hidden_size": 8}, "quantization_config": CASES["gptq"].config},
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert np.array_equal(Checkpoint(tmp_path).tensor(NAME, SHAPE), numbers)


def test_modules_that_are_left_out_are_plain(tmp_path: Path) -> None:
    tensors, _ = CASES["gptq"].write(MODULE, *SHAPE, np.random.default_rng(1))
    tensors["lm_head.weight"] = ("BF16", np.full((4, 96), 0x3F80))
    checkpoint = Checkpoint(write_folder(tmp_path, CASES["gptq"].config, tensors))
    assert np.array_equal(checkpoint.matrix("lm_head.weight", (4, 96)), np.full((4, 96), 0x3F80))


def test_what_is_rounded_once_more_is_so_by_what_the_page_says() -> None:
    """Relative to normal weights without and with outliers; beside them FP8 itself is wrong by 2.6 %."""
    for outliers, most in ((0.0, 0.006), (OUTLIERS, 0.009)):
        for one in errors(128, 4096, outliers):
            assert 0.001 < one.added < most if one.format.startswith("FP8") else one.added < 1e-6
            assert not one.format.startswith("FP8") or 0.024 < one.own < 0.028


# -- refusals ----------------------------------------------------------------------------------------------------------
def changed(case: str, without: str = "", **parts: tuple[str, Any]) -> Tensors:
    tensors, _ = CASES[case].write(MODULE, *SHAPE, np.random.default_rng(2))
    tensors.pop(f"{MODULE}.{without}", None)
    return tensors | {f"{MODULE}.{part}": value for part, value in parts.items()}


def ones(dtype: str, *shape: int, value: float = 1) -> tuple[str, np.ndarray]:
    return dtype, np.full(shape, value, np.float32)


@pytest.mark.parametrize(
    ("case", "tensors", "sentence"),
    [
        ("gptq", changed("gptq", "scales"), r"lacks tensor '.*up_proj\.scales'"),
        ("gptq", changed("gptq", "qzeros"), r"lacks tensor '.*up_proj\.qzeros'"),
        ("gptq", changed("gptq", scales=ones("F16", 5, 48)), r"shape \[5, 48\], whose groups do not divide the 96 inp"),
        ("gptq", changed("gptq", scales=ones("F16", 6, 48)), "has 6 groups of 16 .* config.json says groups of 32"),
        (
            "gptq",
            changed("gptq", scales=ones("F16", 3, 40)),
            r"scales' .* \[3, 40\], but config.json asks for \[3, 48\]",
        ),
        ("gptq", changed("gptq", scales=ones("F16", 3, 48, value=np.nan)), "holds 144 scales of 144 that are no finit"),
        ("gptq", changed("gptq", scales=ones("F32", 3, 48, value=3e38)), "go up to 3e.38, which makes weights that ar"),
        ("gptq", changed("gptq", scales=ones("I32", 3, 48)), "stored as I32, but the .* means F32 or F16 or BF16"),
        ("gptq", changed("gptq", qweight=ones("I32", 12, 40)), r"qweight' .* shape \[12, 40\], .* asks for \[12, 48\]"),
        ("gptq", changed("gptq", qweight=ones("I8", 12, 48)), "stored as I8, but the checkpoint's quant.* means I32"),
        ("gptq", changed("gptq", g_idx=("I32", np.full(96, 3))), "in groups 3 to 3, but there are 3 groups, from 0"),
        ("gptq", changed("gptq", g_idx=("I32", np.full(96, -1))), "in groups -1 to -1"),
        ("gptq", changed("gptq", g_idx=("I32", np.full(96, 1))), "makes groups of 0 to 96 inputs, where all 3 must h"),
        ("awq", changed("awq", "qzeros"), r"lacks tensor '.*up_proj\.qzeros'"),
        ("awq", changed("awq", qweight=ones("I32", 96, 5)), r"qweight' .* shape \[96, 5\], .* asks for \[96, 6\]"),
        (
            "compressed-tensors, int4",
            changed("compressed-tensors, int4", weight_shape=("I64", np.array([48, 64]))),
            r"says that the packed matrix has shape \[48, 64\], but config.json asks for \[48, 96\]",
        ),
        (
            "compressed-tensors, int4 with zeros",
            changed("compressed-tensors, int4 with zeros", "weight_zero_point"),
            "lacks tensor '.*weight_zero_point'",
        ),
        ("fp8", changed("fp8", "weight_scale"), r"lacks tensor '.*weight_scale', without which the 8 bits of"),
        ("fp8", changed("fp8", weight_scale=ones("F32", 7)), r"shape \[7\], which is neither one scale nor one for ea"),
        ("fp8", changed("fp8", weight=ones("F8_E4M3", 48, 96, value=127)), "holds 4,608 weights that are no numbers"),
        (
            "fp8 in blocks",
            changed("fp8 in blocks", weight_scale_inv=ones("F32", 3, 4)),
            r"\[3, 4\], .* asks for \[3, 3\]",
        ),
        (
            "fp8 in blocks of powers of two",
            changed("fp8 in blocks of powers of two", weight_scale_inv=ones("F8_E8M0", 3, 3, value=255)),
            "holds 9 scales of 9",
        ),
    ],
)
def test_what_does_not_fit_is_named(case: str, tensors: Tensors, sentence: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_folder(tmp_path, CASES[case].config, tensors))
    for read in (checkpoint.tensor, checkpoint.matrix):
        with pytest.raises(ModelError, match=sentence) as raised:
            read(NAME, SHAPE)
        assert len(str(raised.value)) < 400 + len(str(tmp_path))


def test_groups_that_no_kernel_has_are_refused(tmp_path: Path) -> None:
    for folder, case in (("a", gptq(4, 24)), ("b", packed(4, 24))):
        tensors, _ = case.write(MODULE, *SHAPE, np.random.default_rng(0))
        checkpoint = Checkpoint(write_folder(tmp_path / folder, case.config, tensors))
        with pytest.raises(ModelError, match="has groups of 24 inputs; in 4 bits, groups of a multiple of 16 are supp"):
            checkpoint.matrix(NAME, SHAPE)


def test_shapes_that_words_do_not_hold_are_refused(tmp_path: Path) -> None:
    checkpoint, _ = written(tmp_path, "gptq")
    with pytest.raises(ModelError, match=r"up_proj has 50 outputs, but words of packed weights hold 8"):
        checkpoint.tensor(NAME, (50, 96))
    with pytest.raises(ModelError, match=r"lies packed as a matrix, but config\.json asks for the shape \[48\]"):
        checkpoint.tensor(NAME, (48,))


def test_packed_tensors_without_a_word_in_the_config(tmp_path: Path) -> None:
    checkpoint, _ = written(tmp_path, "gptq")
    (tmp_path / "config.json").write_text("{}")
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(ModelError, match=r"lies packed in .*, but its config\.json has no quantization_config"):
        checkpoint.tensor(NAME, SHAPE)


def test_no_memory_is_taken_for_what_a_config_claims(tmp_path: Path) -> None:
    import tracemalloc

    checkpoint, _ = written(tmp_path, "gptq")
    tracemalloc.start()
    with pytest.raises(ModelError):
        checkpoint.matrix(NAME, (2**22, 2**22))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
