"""Read the tensors of a GGUF model by the names that Hugging Face gives them, undoing what the converter did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from inflight.counted import counted
from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.matrices import Array, Matrix, Rows, rows_of
from inflight.execution.checkpoints.gguf.blocks import PACKED_HERE, as_they_lie, dequantize, matrix_of, readable
from inflight.execution.checkpoints.gguf.names import StoredTensor, learnt_number, stored_tensor
from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_file import GGUFFile, TensorEntry
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.gguf.keys import Keys

_PIECE = 2**22  # numbers of a table that are made at a time
_PLAIN = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


class GGUFCheckpoint:
    """Views are read-only; what is not plain in the file is made when it is asked for."""

    def __init__(self, model: Path | GGUFModel, dequantizes: bool = False) -> None:
        """Open every part of a file and check its header, or take what is open. dequantizes: return all matrices as
        plain numbers. Raises ModelError, also for types of tensors that are not read."""
        self._model = model if isinstance(model, GGUFModel) else GGUFModel(model)
        self._architecture, self._dequantizes = self._model.architecture, dequantizes
        self._stored: dict[str, StoredTensor | None] = {}  # a tensor is asked for four times on its way through a start
        unread = {entry.type.name for _, entry in self._model.tensors.values()} - set(readable())
        if unread:
            raise ModelError(
                f"{self._model.path} holds tensors of the types {', '.join(sorted(unread))}, which are not read; read "
                f"are {', '.join(readable())}. Take a file of one of these."
            )

    def __contains__(self, name: str) -> bool:
        return self._learnt(name) is not None or self._find(name) is not None

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """Return [shape] of float32, float16 or uint16 (bf16). Raises ModelError where name or shape do not fit."""
        learnt = self._learnt(name)
        if learnt is not None:
            return np.array(learnt, np.float32).reshape(tuple(shape))
        stored, file, entry = self._checked(name, tuple(shape))
        if stored.undo == "separate":
            return self._joined(stored, tuple(shape))
        return self._undone(stored, self._values(stored, file, entry).reshape(tuple(shape)))

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterator[Rows]:
        """Yield the rows of `tensor`, some at a time, or the blocks that stand for them."""
        stored, file, entry = self._checked(name, shape)
        if entry.type.is_plain or stored.undo != "none":
            yield self.tensor(name, shape)
            return
        raw, row_blocks = self._raw(stored, file, entry), shape[1] // entry.type.values
        if entry.type.name not in PACKED_HERE:
            yield as_they_lie(entry.type.name, raw, shape, entry.type.values)
            return
        step = max(1, _PIECE // shape[1]) * row_blocks
        for start in range(0, len(raw), step):
            piece = dequantize(entry.type.name, raw[start : start + step], entry.type.values)
            yield piece.reshape(-1, shape[1])

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Return a matrix [outputs, inputs] as stored, or rounded to a form that is packed (`blocks`). Errors as
        above."""
        stored, file, entry = self._checked(name, shape)
        is_moved = stored.undo not in ("none", "rotated pairs", "value heads")
        if entry.type.is_plain or is_moved or self._dequantizes:
            return self.tensor(name, shape)
        # All of a stack up to this expert: reading the next one maps pages that were given back with those before.
        pages = np.frombuffer(file.map, np.uint8, _span(stored, entry)[1] - entry.begin, entry.begin)
        held = matrix_of(entry.type.name, self._raw(stored, file, entry), shape, entry.type.values, pages)
        order = self._row_order(stored, shape[0])
        return held if order is None else rows_of(held, order)

    def release(self, name: str) -> None:
        """Release the memory that reading a tensor took. Its views stay valid."""
        found = self._find(name)
        if found is not None:
            file, entry = self._model.tensors[found.name]
            file.release(*_span(found, entry))

    # -- finding ----------------------------------------------------------------------------------------------------
    def _find(self, name: str) -> StoredTensor | None:
        if name not in self._stored:
            stored = stored_tensor(name, self._architecture, self._model.tensors)
            self._stored[name] = stored if stored is not None and stored.name in self._model.tensors else None
        return self._stored[name]

    def _learnt(self, name: str) -> float | None:
        """Return a layer's learnt number that the metadata hold."""
        key, layer = learnt_number(name) or ("", 0)
        numbers = self._model.metadata.numbers(key) if key else ()
        return numbers[layer] if layer < len(numbers) else None

    def _checked(self, name: str, shape: tuple[int, ...]) -> tuple[StoredTensor, GGUFFile, TensorEntry]:
        stored = self._find(name)
        if stored is None:
            known = stored_tensor(name, self._architecture, self._model.tensors)
            called = "" if known is None else f" ({known.name} there)"
            raise ModelError(
                f"{self._model.path} lacks tensor {name!r}{called}, which its metadata ask for; convert the model "
                "again, or take a complete file."
            )
        file, entry = self._model.tensors[stored.name]
        if stored.undo == "separate":  # whose shape follows from both
            return stored, file, entry
        held = entry.shape if stored.expert is None else entry.shape[1:]
        if stored.half is not None and held[0] % 2 == 0:
            held = (held[0] // 2, *held[1:])
        if stored.expert is not None and stored.expert >= entry.shape[0]:
            raise ModelError(
                f"{stored.name} in {file.path} stacks {counted(entry.shape[0], 'expert')}, and not {stored.expert + 1}."
            )
        if _essential(held) != _essential(shape):
            raise ModelError(
                f"tensor {stored.name!r} in {file.path} has shape {list(held)}, but the metadata ask for {list(shape)} "
                f"({name}); convert the model again."
            )
        return stored, file, entry

    def _values(self, stored: StoredTensor, file: GGUFFile, entry: TensorEntry) -> Array:
        raw = self._raw(stored, file, entry)
        if entry.type.is_plain:
            return raw.view(_PLAIN[entry.type.name])
        return dequantize(entry.type.name, raw, entry.type.values)

    def _raw(self, stored: StoredTensor, file: GGUFFile, entry: TensorEntry) -> Array:
        """Return the tensor's bytes, or those of one expert, or of half its rows: uint8 [blocks, bytes of one]."""
        begin, end = _span(stored, entry)
        return np.frombuffer(file.map, np.uint8, end - begin, begin).reshape(-1, entry.type.nbytes)

    # -- what the converter did -------------------------------------------------------------------------------------
    def _joined(self, stored: StoredTensor, shape: tuple[int, ...]) -> Array:
        """Join keys and values of latent attention, head by head: [heads · (keys + values), compressed]."""
        beside = StoredTensor(stored.name.replace("attn_k_b", "attn_v_b"))
        parts = []
        for one in (stored, beside):
            if one.name not in self._model.tensors:
                raise ModelError(f"{self._model.path} has {stored.name}, but no {one.name}; take a complete file.")
            file, entry = self._model.tensors[one.name]
            parts.append(_float32(self._values(one, file, entry)).reshape(entry.shape))
        keys, values = parts[0].swapaxes(-1, -2) if parts[0].ndim > 1 else parts[0], parts[1]
        if (
            keys.ndim != 3
            or keys.shape[::2] != values.shape[::2]
            or (keys.shape[0] * (keys.shape[1] + values.shape[1]), keys.shape[2]) != shape
        ):
            raise ModelError(
                f"{stored.name} and {beside.name} in {self._model.path} have shapes {list(parts[0].shape)} and "
                f"{list(values.shape)}, but the metadata ask for {list(shape)} of both; convert the model again."
            )
        return np.concatenate((keys, values), axis=1).reshape(shape)

    def _undone(self, stored: StoredTensor, values: Array) -> Array:
        if stored.undo == "none":
            return values
        if stored.undo == "added one":
            return np.asarray(_float32(values) - np.float32(1))
        if stored.undo == "log of negated":
            with np.errstate(invalid="ignore", divide="ignore"):  # a damaged file's may be no negated exponentials
                values = np.log(-_float32(values))
        if stored.undo == "value columns":
            order = self._value_order(values.shape[1], 0)
            return np.ascontiguousarray(values[:, order])
        rows = self._row_order(stored, values.shape[0])
        return values if rows is None else np.ascontiguousarray(values[rows])

    def _row_order(self, stored: StoredTensor, rows: int) -> Array | None:
        """Return the index of the file's row for each row; None where they are in order."""
        if stored.undo == "rotated pairs":
            keys = Keys(self._model)
            heads = keys.one("attention.head_count_kv" if ".attn_k." in stored.name else "attention.head_count")
            if heads < 1 or rows % (2 * heads):
                raise ModelError(f"{stored.name} in {self._model.path} has {rows} rows, which are no {heads} heads.")
            return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()
        if stored.undo in ("value heads", "log of negated") and self._architecture in ("qwen35", "qwen35moe"):
            fused = any(f".{leaf}." in stored.name for leaf in ("attn_qkv", "ssm_conv1d"))
            keys = Keys(self._model)
            before = 2 * keys.size("ssm.state_size") * keys.size("ssm.group_count") if fused else 0
            return self._value_order(rows, before)
        return None

    def _value_order(self, count: int, before: int) -> Array:
        """Order heads of values by key head: the file has the first of each, then the second of each. before: rows of
        queries and keys, which stay."""
        keys = Keys(self._model)
        key_heads, value_heads = keys.size("ssm.group_count"), keys.size("ssm.time_step_rank")
        if (
            min(key_heads, value_heads) < 1
            or value_heads % key_heads
            or (count - before) % value_heads
            or count < before
        ):
            raise ModelError(
                f"{self._model.path} has {value_heads} heads of values for {key_heads} of keys, which do not make "
                f"{count} rows; convert the model again."
            )
        tiled = np.arange(count - before).reshape(value_heads // key_heads, key_heads, -1)
        return np.concatenate((np.arange(before), before + tiled.swapaxes(0, 1).ravel()))


def _span(stored: StoredTensor, entry: TensorEntry) -> tuple[int, int]:
    """Return the bytes of the file that hold the tensor, one expert of it, or half its rows: first, and behind the
    last."""
    begin, size = entry.begin, math.prod(entry.shape) // entry.type.values * entry.type.nbytes
    if stored.expert is not None:
        size //= entry.shape[0]
        begin += stored.expert * size
    if stored.half is not None:
        size //= 2
        begin += stored.half * size
    return begin, begin + size


def _essential(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without sizes of 1, which converters leave out."""
    return tuple(size for size in shape if size != 1)


def _float32(values: Array) -> Array:
    return from_bf16(values) if values.dtype == np.uint16 else values.astype(np.float32)
