"""Small quantized matrices of every format, and what they hold: decoded number by number from the layout's description.

Slow on purpose: no line is shared with the readers. Codes and scales are drawn; nothing is quantized.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, tuple[str, np.ndarray]]  # name → dtype as safetensors names it, and what lies there
Write = Callable[[str, int, int, np.random.Generator], tuple[Tensors, np.ndarray]]  # module, N, K → its tensors, W
_SIZES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "I32": np.int32, "I64": np.int64, "I8": np.int8}


@dataclass(frozen=True)
class Case:
    config: dict[str, Any]  # quantization_config
    write: Write
    exact: bool = True  # what a backend is given has the format's own numbers


def write_file(path: Path, tensors: Tensors) -> None:
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        content = np.ascontiguousarray(array, _SIZES.get(dtype, np.uint8)).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(np.shape(array)),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_folder(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    write_file(folder / "model.safetensors", tensors)
    return folder


# -- single numbers ----------------------------------------------------------------------------------------------------
def bits_of(word: int, place: int, bits: int) -> int:
    """Return the code at `place` of a word of 32 bits, the lowest being 0."""
    return int(word) % 2**32 // 2 ** (bits * place) % 2**bits


def e4m3(code: int) -> float:
    sign, exponent, fraction = (-1 if code >= 128 else 1), code // 8 % 16, code % 8
    return sign * (2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else 2.0**-6 * fraction / 8)


def product(whole: float, scale: float) -> np.float32:
    return np.float32(np.float32(whole) * np.float32(scale))


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-(2**31), 2**31, shape).astype(np.int32)


def scales(rng: np.random.Generator, *shape: int, bits: int = 4) -> np.ndarray:
    return (rng.uniform(0.005, 0.05, shape) * 2 ** (4 - bits)).astype(np.float16)


def groups_of(inputs: int, size: int, rng: np.random.Generator, shuffled: bool) -> list[int]:
    found = [k // size for k in range(inputs)]
    return [int(one) for one in rng.permutation(found)] if shuffled else found


# -- formats -----------------------------------------------------------------------------------------------------------
def awq(group: int) -> Case:
    places = (0, 4, 1, 5, 2, 6, 3, 7)

    def write(module: str, outputs: int, inputs: int, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        size = inputs if group == -1 else group
        weight, zeros = words(rng, inputs, outputs // 8), words(rng, inputs // size, outputs // 8)
        scale = scales(rng, inputs // size, outputs)
        found = np.empty((outputs, inputs), np.float32)
        for n in range(outputs):
            for k in range(inputs):
                code = bits_of(weight[k, n // 8], places[n % 8], 4)
                zero = bits_of(zeros[k // size, n // 8], places[n % 8], 4)
                found[n, k] = product(code - zero, scale[k // size, n])
        parts = {"qweight": ("I32", weight), "qzeros": ("I32", zeros), "scales": ("F16", scale)}
        return {f"{module}.{part}": value for part, value in parts.items()}, found

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return Case(config, write)


def gptq(bits: int, group: int, *, second: bool = False, act_order: bool = False, symmetric: bool = False) -> Case:
    def write(module: str, outputs: int, inputs: int, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        size, in_word = inputs if group == -1 else group, 32 // bits
        weight, zeros = words(rng, inputs // in_word, outputs), words(rng, inputs // size, outputs // in_word)
        if symmetric:
            middle = 2 ** (bits - 1) - (0 if second else 1)
            zeros[:] = np.uint32(sum(middle << (bits * place) for place in range(in_word))).astype(np.int32)
        scale, groups = scales(rng, inputs // size, outputs, bits=bits), groups_of(inputs, size, rng, act_order)
        found = np.empty((outputs, inputs), np.float32)
        for n in range(outputs):
            for k in range(inputs):
                code = bits_of(weight[k // in_word, n], k % in_word, bits)
                zero = bits_of(zeros[groups[k], n // in_word], n % in_word, bits)
                zero = zero if second else (zero + 1) % 2**bits
                found[n, k] = product(code - zero, scale[groups[k], n])
        parts = {"qweight": ("I32", weight), "qzeros": ("I32", zeros), "scales": ("F16", scale)}
        parts["g_idx"] = ("I32", np.array(groups))
        return {f"{module}.{part}": value for part, value in parts.items()}, found

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order}
    return Case(config | ({"checkpoint_format": "gptq_v2"} if second else {}), write, exact=bits == 4 or not act_order)


def packed(bits: int, group: int, *, symmetric: bool = True, act_order: bool = False) -> Case:
    """compressed-tensors, pack-quantized."""

    def write(module: str, outputs: int, inputs: int, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        size, in_word = inputs if group == -1 else group, 32 // bits
        weight, scale = words(rng, outputs, inputs // in_word), scales(rng, outputs, inputs // size, bits=bits)
        zeros = words(rng, -(-outputs // in_word), inputs // size)
        groups, half = groups_of(inputs, size, rng, act_order), 2 ** (bits - 1)
        found = np.empty((outputs, inputs), np.float32)
        for n in range(outputs):
            for k in range(inputs):
                code = bits_of(weight[n, k // in_word], k % in_word, bits) - half
                zero = 0 if symmetric else bits_of(zeros[n // in_word, groups[k]], n % in_word, bits) - half
                found[n, k] = product(code - zero, scale[n, groups[k]])
        parts = {"weight_packed": ("I32", weight), "weight_scale": ("F16", scale)}
        parts["weight_shape"] = ("I64", np.array([outputs, inputs]))
        parts |= {} if symmetric else {"weight_zero_point": ("I32", zeros)}
        parts |= {"weight_g_idx": ("I32", np.array(groups))} if act_order else {}
        return {f"{module}.{part}": value for part, value in parts.items()}, found

    said = {"num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": None if group == -1 else group}
    said |= {"strategy": "channel" if group == -1 else "group", "actorder": "group" if act_order else None}
    return Case(compressed("pack-quantized", said), write, exact=bits == 4 or not act_order)


def compressed(layout: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}}


def whole(strategy: str, group: int = -1, *, symmetric: bool = True) -> Case:
    """compressed-tensors, int-quantized: strategy `tensor`, `channel` or `group`."""

    def write(module: str, outputs: int, inputs: int, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        size = inputs if group == -1 else group
        weight = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
        held = (1,) if strategy == "tensor" else (outputs, inputs // size)
        scale, zeros = scales(rng, *held, bits=8), rng.integers(-9, 9, held).astype(np.int8)
        found = np.empty((outputs, inputs), np.float32)
        for n in range(outputs):
            for k in range(inputs):
                place = 0 if strategy == "tensor" else (n, k // size)
                zero = 0 if symmetric else int(zeros[place])
                found[n, k] = product(int(weight[n, k]) - zero, scale[place])
        parts = {"weight": ("I8", weight), "weight_scale": ("F16", scale)}
        parts |= {} if symmetric else {"weight_zero_point": ("I8", zeros)}
        return {f"{module}.{part}": value for part, value in parts.items()}, found

    said = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": None}
    said |= {} if group == -1 else {"group_size": group}
    return Case(compressed("int-quantized", said), write)


def floats(config: dict[str, Any], part: str, block: tuple[int, int] | str, dtype: str = "F32") -> Case:
    """FP8: `part` names the scales; block: outputs and inputs that share one, or `tensor` or `channel`."""

    def write(module: str, outputs: int, inputs: int, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        if isinstance(block, tuple):
            high, wide = block
            held: tuple[int, ...] = (-(-outputs // high), -(-inputs // wide))
        else:
            held = () if block == "tensor" else (outputs, 1)
        if dtype == "F8_E8M0":
            raw = rng.integers(118, 121, held).astype(np.uint8)
            scale = np.vectorize(lambda one: 2.0 ** (int(one) - 127))(raw)
        else:
            raw = scale = rng.uniform(0.001, 0.01, held).astype(np.float32)
        codes = np.clip(np.abs(rng.normal(60, 12, (outputs, inputs))), 0, 126).astype(np.uint8)
        codes |= (rng.integers(0, 2, codes.shape) * 128).astype(np.uint8)
        found = np.empty((outputs, inputs), np.float32)
        for n in range(outputs):
            for k in range(inputs):
                place = (n // high, k // wide) if isinstance(block, tuple) else () if block == "tensor" else (n, 0)
                found[n, k] = product(e4m3(int(codes[n, k])), np.asarray(scale)[place])
        return {f"{module}.weight": ("F8_E4M3", codes), f"{module}.{part}": (dtype, np.asarray(raw))}, found

    return Case(config, write, exact=False)


def fp8(block: tuple[int, int] | None = None, dtype: str = "F32") -> Case:
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    config |= {"weight_block_size": list(block)} if block else {}
    return floats(config, "weight_scale_inv" if block else "weight_scale", block or "tensor", dtype)


def fp8_compressed(strategy: str) -> Case:
    said = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    said |= {"block_structure": [16, 32]} if strategy == "block" else {}
    return floats(compressed("float-quantized", said), "weight_scale", (16, 32) if strategy == "block" else strategy)


CASES: dict[str, Case] = {
    "awq": awq(32),
    "awq, whole rows": awq(-1),
    "gptq": gptq(4, 32),
    "gptq, symmetric": gptq(4, 16, symmetric=True),
    "gptq, whole rows": gptq(4, -1),
    "gptq, second version": gptq(4, 32, second=True),
    "gptq, act-order": gptq(4, 16, act_order=True),
    "gptq, 8 bits": gptq(8, 32),
    "gptq, 8 bits, act-order": gptq(8, 32, act_order=True, second=True),
    "compressed-tensors, int4": packed(4, 32),
    "compressed-tensors, int4 by channel": packed(4, -1),
    "compressed-tensors, int4 with zeros": packed(4, 16, symmetric=False),
    "compressed-tensors, int4 act-order": packed(4, 32, act_order=True),
    "compressed-tensors, packed int8": packed(8, 32, symmetric=False),
    "compressed-tensors, packed int8 by channel": packed(8, -1),
    "compressed-tensors, int8": whole("channel"),
    "compressed-tensors, int8 by tensor": whole("tensor"),
    "compressed-tensors, int8 in groups": whole("group", 32),
    "compressed-tensors, int8 with zeros": whole("channel", symmetric=False),
    "compressed-tensors, fp8 by tensor": fp8_compressed("tensor"),
    "compressed-tensors, fp8 by channel": fp8_compressed("channel"),
    "compressed-tensors, fp8 in blocks": fp8_compressed("block"),
    "fp8": fp8(),
    "fbgemm_fp8": floats({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "weight_scale", "channel"),
    "fp8 in blocks": fp8((16, 32)),
    "fp8 in blocks that are cut": fp8((40, 24)),
    "fp8 in blocks of powers of two": fp8((16, 32), "F8_E8M0"),
}
