"""Read packed matrices of quantized checkpoints: GPTQ, AWQ, compressed-tensors, and weights of 8 bits."""

from __future__ import annotations

import numpy as np

from inflight.counted import counted
from inflight.execution.backends.fp8 import E4M3
from inflight.execution.backends.matrices import GROUPS, LINEAR_CODES, Array
from inflight.execution.checkpoints.codes import OFFSET_8, WHOLE_8, Codes, unpacked, zeros_or_none
from inflight.execution.checkpoints.safetensors_file import Tensors
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat

_CONFIG = "take the config.json that belongs to this checkpoint"
_AGAIN = f"{_CONFIG}, or another quantization of the model."
_AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
_SCALES = (".weight_scale_inv", ".weight_scale")


def gptq(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix packed by GPTQ. Raises ModelError for a tensor that is missing or does not fit the shape.

    Of a module [N, K] with b bits: qweight int32[K · b / 32, N], qzeros int32[G, N · b / 32], scales [G, N], and g_idx
    int32[K], the group of each input; the lowest bits come first. W[n, k] = (code - zero) · scale. The first version of
    the layout stores each zero less 1, in as many bits: 0 is stored as the largest code. `gptq_v2` stores it as it is.
    """
    (outputs, inputs), bits = shape, format.bits or 4
    in_word, middle = 32 // bits, 1 << (bits - 1)
    check_divides("inputs", inputs, in_word, module)
    check_divides("outputs", outputs, in_word, module)
    count = _group_count(tensors, module + ".scales", 0, inputs, format)
    groups = _listed(tensors, module + ".g_idx", inputs, count)
    scales = tensors.numbers(module + ".scales", (count, outputs))
    qzeros = tensors.stored(module + ".qzeros", ("I32",), (count, outputs // in_word))
    qweight = tensors.stored(module + ".qweight", ("I32",), (inputs // in_word, outputs))
    zeros = unpacked(qzeros, bits).astype(np.int32).T
    if format.layout != "gptq_v2":
        zeros = (zeros + 1) % (1 << bits)
    meanings = LINEAR_CODES if bits == 4 else OFFSET_8
    offsets = zeros_or_none(zeros - middle)
    return Codes(unpacked(qweight.T, bits), meanings, np.ascontiguousarray(scales.T), offsets, groups)


def awq(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix packed by AWQ for its `gemm` kernels. Raises ModelError as `gptq`.

    Of a module [N, K]: qweight int32[K, N / 8], qzeros int32[G, N / 8], scales [G, N]. Of the eight outputs of a word,
    from the first, the codes are its nibbles 0, 4, 1, 5, 2, 6, 3, 7, the lowest being 0. W[n, k] = (code - zero) ·
    scale.
    """
    outputs, inputs = shape
    check_divides("outputs", outputs, len(_AWQ_NIBBLES), module)
    words = outputs // len(_AWQ_NIBBLES)
    count = _group_count(tensors, module + ".scales", 0, inputs, format)
    scales = tensors.numbers(module + ".scales", (count, outputs))
    zeros = _awq_unpacked(tensors.stored(module + ".qzeros", ("I32",), (count, words)))
    codes = _awq_unpacked(tensors.stored(module + ".qweight", ("I32",), (inputs, words)))
    offsets = zeros_or_none(zeros.astype(np.int32) - 8)
    return Codes(codes, LINEAR_CODES, np.ascontiguousarray(scales.T), offsets, equal_groups(inputs, count))


def _awq_unpacked(words: Array) -> Array:
    """Return the codes of int32[R, N / 8]: uint8[N, R]."""
    octets = np.ascontiguousarray(words.T).view(np.uint8).reshape(words.shape[1], words.shape[0], 4)
    codes = np.empty((words.shape[1], len(_AWQ_NIBBLES), words.shape[0]), np.uint8)
    for output, nibble in enumerate(_AWQ_NIBBLES):
        octet = octets[:, :, nibble // 2]
        codes[:, output] = octet >> 4 if nibble % 2 else octet & 15
    return codes.reshape(-1, words.shape[0])


def compressed_tensors(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix of compressed-tensors, packed or in 8 bits as it is. Raises ModelError as `gptq`.

    Of a module [N, K] that is packed with b bits: weight_packed int32[N, ⌈K · b / 32⌉], the lowest bits first, each
    code a whole number with a sign to which half of the range was added; weight_scale [N, G]; where the format is not
    symmetric, weight_zero_point int32[⌈N · b / 32⌉, G], packed likewise along the outputs; weight_shape, the numbers N
    and K; and weight_g_idx, the group of each input, where they follow the activations' size. W[n, k] = (code - zero) ·
    scale.
    """
    packed, zero = module + ".weight_packed", module + ".weight_zero_point"
    if packed not in tensors:
        return eight_bits(tensors, module, shape, format)
    (outputs, inputs), bits = shape, format.bits or 4
    in_word, middle = 32 // bits, 1 << (bits - 1)
    stated = [int(one) for one in tensors.stored(module + ".weight_shape", ("I64", "I32"), (2,))]
    if stated != list(shape):
        raise ModelError(
            f"tensor {module + '.weight_shape'!r} says that the packed matrix has shape {stated}, but config.json asks "
            f"for {list(shape)}; {_CONFIG}."
        )
    count = _group_count(tensors, module + ".weight_scale", 1, inputs, format)
    groups = _listed(tensors, module + ".weight_g_idx", inputs, count)
    scales = tensors.numbers(module + ".weight_scale", (outputs, count))
    zeros = None
    if format.symmetric is False or zero in tensors:
        held = tensors.stored(zero, ("I32",), (-(-outputs // in_word), count))
        zeros = zeros_or_none(unpacked(held.T, bits).T[:outputs].astype(np.int32) - middle)
    words = tensors.stored(packed, ("I32",), (outputs, -(-inputs // in_word)))
    meanings = LINEAR_CODES if bits == 4 else OFFSET_8
    return Codes(unpacked(words, bits)[:, :inputs], meanings, scales, zeros, groups)


def eight_bits(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix of FP8 or int8. Raises ModelError as `gptq`, and for weights that are not finite.

    Of a module [N, K]: weight F8_E4M3 or I8 [N, K], and weight_scale or weight_scale_inv (codes are multiplied by both,
    whatever the name says): one in all ([] or [1]), one for each output ([N] or [N, 1]), one for each block of
    outputs and inputs [⌈N / a⌉, ⌈K / b⌉], or one for each output and group of inputs [N, G]; I8 may have
    weight_zero_point of the same shape. FP8 scales may be bytes that are exponents (E8M0).
    """
    weight, zero = module + ".weight", module + ".weight_zero_point"
    scale = next((module + name for name in _SCALES if module + name in tensors), None)
    if scale is None:
        raise ModelError(
            f"the checkpoint in {tensors.folder} lacks tensor {module + _SCALES[1]!r}, without which the 8 bits of "
            f"{weight!r} mean nothing; take a complete checkpoint."
        )
    span, count, groups = _shared_scales(tensors, module, scale, shape, format)
    held, by_group = tensors.shape(scale), (-(-shape[0] // span), count)
    scales = tensors.numbers(scale, held, ("F8_E8M0", "U8")).reshape(by_group)
    zeros = None
    if zero in tensors:
        zeros = zeros_or_none(tensors.stored(zero, ("I8",), held).reshape(by_group))
    codes = tensors.stored(weight, ("F8_E4M3", "I8"), shape)
    if codes.dtype == np.int8:
        return Codes(codes.view(np.uint8), WHOLE_8, scales, zeros, groups, span)
    if zeros is not None:
        raise ModelError(f"tensor {zero!r} gives zero points to floats of 8 bits, which have none; download it again.")
    broken = sum(int(np.count_nonzero(row & 127 == 127)) for row in codes)
    if broken:
        what = counted(broken, "weight that is no number", "weights that are no numbers")
        raise ModelError(f"tensor {weight!r} holds {what}; download it again.")
    return Codes(codes, E4M3, scales, None, groups, span)


def _shared_scales(
    tensors: Tensors, module: str, scale: str, shape: tuple[int, int], format: WeightFormat
) -> tuple[int, int, Array]:
    """Return how many outputs share a scale, the number of groups of inputs, and the group of each input."""
    (outputs, inputs), held = shape, tensors.shape(scale)
    if format.block is not None and len(held) == 2:
        high, wide = format.block
        tensors.check_shape(scale, (-(-outputs // high), -(-inputs // wide)))
        return high, held[1], np.arange(inputs, dtype=np.int32) // np.int32(wide)
    if held in ((), (1,), (1, 1)):
        return outputs, 1, np.zeros(inputs, np.int32)
    if held in ((outputs,), (outputs, 1)):
        return 1, 1, np.zeros(inputs, np.int32)
    if len(held) == 2 and held[0] == outputs:
        count = _group_count(tensors, scale, 1, inputs, format)
        return 1, count, _listed(tensors, module + ".weight_g_idx", inputs, count)
    raise ModelError(
        f"tensor {scale!r} has shape {list(held)}, which is neither one scale nor one for each of {outputs} outputs, "
        f"nor for blocks or groups that config.json names; {_CONFIG}."
    )


# -- groups of inputs that share a scale
def _group_count(tensors: Tensors, scales: str, axis: int, inputs: int, format: WeightFormat) -> int:
    """Return the number of groups along the inputs, from the shape of the scales. Raises ModelError where they do not
    divide the inputs, are too small, or are not those of config.json."""
    shape = tensors.shape(scales)
    count = shape[axis] if len(shape) == 2 else 0
    if count < 1 or inputs % count:
        raise ModelError(
            f"tensor {scales!r} has shape {list(shape)}, whose groups do not divide the {inputs} inputs that "
            f"config.json asks for; {_AGAIN}"
        )
    size, given = inputs // count, format.group_size
    if given is not None and size != min(given, inputs):
        raise ModelError(
            f"tensor {scales!r} has {count} groups of {size} of the {inputs} inputs, but config.json says groups of "
            f"{given}; {_AGAIN}"
        )
    if format.bits == 4 and size % GROUPS[-1]:
        raise ModelError(
            f"tensor {scales!r} has groups of {size} inputs; in 4 bits, groups of a multiple of {GROUPS[-1]} are "
            f"supported; {_AGAIN}"
        )
    return count


def equal_groups(inputs: int, count: int) -> Array:
    """Return the group of each input, int32[inputs], where groups are equal runs of neighbours."""
    return np.repeat(np.arange(count, dtype=np.int32), inputs // count)


def _listed(tensors: Tensors, name: str, inputs: int, count: int) -> Array:
    """Return the group of each input, int32[inputs], as the tensor `name` lists them; without it, equal runs. Raises
    ModelError for a group that does not exist, and for groups of different sizes."""
    if name not in tensors:
        return equal_groups(inputs, count)
    found = tensors.stored(name, ("I32", "I64"), (inputs,))
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= count:
        raise ModelError(
            f"tensor {name!r} places inputs in groups {low} to {high}, but there are {count} groups, from 0; {_AGAIN}"
        )
    sizes = np.bincount(found, minlength=count)
    if sizes.min() != sizes.max():
        raise ModelError(
            f"tensor {name!r} makes groups of {sizes.min()} to {sizes.max()} inputs, where all {count} must have "
            f"{inputs // count}; {_AGAIN}"
        )
    return found.astype(np.int32)


def check_divides(what: str, count: int, by: int, module: str) -> None:
    """Raise ModelError where packed words would be cut."""
    if count % by:
        raise ModelError(f"{module} has {count} {what}, but words of packed weights hold {by}; {_CONFIG}.")
