"""Quantized checkpoints that were damaged at random: the answer is a right one or one sentence, in little memory."""

from __future__ import annotations

import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.execution.backends.matrices import ReorderedMatrix
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.json_file import LONGEST_FILE
from inflight.models.errors import ModelError
from inflight.models.registry import read_folder

from ..test_config import BASE
from .formats import CASES, Case, Tensors, write_folder

REFERENCE = ReferenceBackend("float32")
SHAPE, MODULE = (16, 64), "model.layers.0.mlp.up_proj"
EXPERTS, STACK = 2, "model.layers.0.mlp.experts.down_proj"
TRIES = 6  # damages of each kind and format; files take twice as many
MAX_BYTES = LONGEST_FILE + (4 << 20)  # a buffer for the longest config.json; the tensors have a few kilobytes
ODD: list[Any] = [None, True, 0, -1, 3, 2**31, 10**400, 0.5, 1e300, "", "x" * 5000, "\ud800", [], [[]], [1] * 10**5, {}]
DTYPES = ["BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I16", "F16", "BF16", "I32", "F32", "I64", "F64", "Q4"]


def experts(module: str, outputs: int, inputs: int, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    blocks = rng.integers(0, 256, (EXPERTS, outputs, inputs // 32, 16)).astype(np.uint8)
    exponents = rng.integers(110, 130, (EXPERTS, outputs, inputs // 32)).astype(np.uint8)
    tensors: Tensors = {f"{STACK}_blocks": ("U8", blocks), f"{STACK}_scales": ("U8", exponents)}
    return tensors, np.empty(0)


FORMATS = CASES | {"mxfp4": Case({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, experts)}


def read(checkpoint: Checkpoint) -> np.ndarray:
    if STACK in checkpoint:
        experts, one = checkpoint.tensor(STACK, (EXPERTS, *SHAPE[::-1])), STACK.replace("down", "1.down") + ".weight"
        assert checkpoint.matrix(one, SHAPE).shape == SHAPE
        checkpoint.release(one)
        return experts
    numbers, matrix = checkpoint.tensor(MODULE + ".weight", SHAPE), checkpoint.matrix(MODULE + ".weight", SHAPE)
    assert numbers.shape == matrix.shape == SHAPE
    assert REFERENCE.pack_linear([matrix]).columns == SHAPE[1]
    if isinstance(matrix, ReorderedMatrix):
        assert sorted(matrix.order.tolist()) == list(range(SHAPE[1]))
        assert np.array_equal(matrix.dequantized(), numbers)
    checkpoint.release(MODULE + ".weight")
    return numbers


def answer(folder: Path) -> np.ndarray | None:
    """The numbers of the module; None where they are refused."""
    length = 1000 + len(str(folder))
    tracemalloc.start()
    try:
        return read(Checkpoint(folder))
    except ModelError as error:
        assert len(str(error)) < length and "\n" not in str(error)
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MAX_BYTES


@pytest.fixture
def folder(case: str, tmp_path: Path) -> Path:
    tensors, _ = FORMATS[case].write(MODULE, *SHAPE, np.random.default_rng(4))
    return write_folder(tmp_path, FORMATS[case].config, tensors)


@pytest.mark.parametrize("case", FORMATS)
def test_configs(folder: Path, case: str) -> None:
    """Load the tensors' numbers, if anything loads, whatever the rest of the config says."""
    random, expected = np.random.default_rng(len(case)), answer(folder)
    assert expected is not None
    refused = 0
    for _ in range(TRIES):
        config = copy.deepcopy(FORMATS[case].config)
        holder: Any = config
        while True:
            key = random.choice(sorted(holder)) if isinstance(holder, dict) else int(random.integers(len(holder)))
            if not (isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.8):
                break
            holder = holder[key]
        if key == "checkpoint_format":
            continue  # without it, zeros mean something else
        holder[key] = ODD[random.integers(len(ODD))]
        (folder / "config.json").write_text(json.dumps(BASE | {"quantization_config": config}))
        found = answer(folder)
        refused += found is None
        assert found is None or np.array_equal(found, expected)
        try:
            read_folder(folder, to_run=True)
        except ModelError as error:
            assert len(str(error)) < 1000 + len(str(folder))
    assert refused or case == "mxfp4"  # of whose config only the name is read


@pytest.mark.parametrize("case", FORMATS)
def test_headers(folder: Path, case: str) -> None:
    random, path = np.random.default_rng(len(case)), folder / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    for _ in range(TRIES):
        made = copy.deepcopy(header)
        entry = made[random.choice(sorted(made))]
        kind = random.integers(5)
        if kind == 0:
            entry["dtype"] = DTYPES[random.integers(len(DTYPES))]
        elif kind == 1:
            entry["shape"] = entry["shape"][::-1] if random.random() < 0.5 else [*entry["shape"], 1]
        elif kind == 2:
            entry[random.choice(sorted(entry))] = ODD[random.integers(len(ODD))]
        elif kind == 3:
            made.pop(random.choice(sorted(made)))
        else:  # halves and doubles that fit the bytes again
            entry["shape"] = [int(one * factor) for one, factor in zip(entry["shape"], (2, 0.5, 1), strict=False)]
        text = json.dumps(made).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        found = answer(folder)
        assert found is None or np.isfinite(found).all()


@pytest.mark.parametrize("case", FORMATS)
def test_files(folder: Path, case: str) -> None:
    """Cut anywhere, or with other bytes anywhere."""
    random, path = np.random.default_rng(len(case)), folder / "model.safetensors"
    content = path.read_bytes()
    for attempt in range(2 * TRIES):
        if attempt % 2:
            path.write_bytes(content[: random.integers(len(content))])
        else:
            made = bytearray(content)
            for place in random.integers(8 + 200 * (attempt % 4), len(made), 3):
                made[place] = random.integers(256)
            path.write_bytes(made)
        found = answer(folder)
        assert found is None or (attempt % 2 == 0 and np.isfinite(found).all())
