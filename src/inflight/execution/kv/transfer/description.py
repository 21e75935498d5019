"""Description of an engine's blocks, by which two engines find out whether they can transfer them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Short = Annotated[str, Meta(max_length=1024)]


class KVDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of an engine: all but `model` must be equal at both engines.

    Attributes:
        release: Of this program.
        model: Name, for error messages.
        weights: Digest of the model's files, and of the options that their numbers or rotations depend on.
        dtype: Of activations.
        kv_format: Of keys and values.
        kernels: That compute them, and lay them out in a block.
        layers: Digest of what each layer keeps in a block.
        block_size: Tokens of a block.
        block_bytes: Bytes of a block.
        tensor_parallel: Degree.
        windows: Of each KV group; 0: none.
        adapters: Digests of adapters' files, by adapter name.
    """

    release: Short
    model: Short
    weights: Short
    dtype: Short
    kv_format: Short
    kernels: Short
    layers: Short
    block_size: int
    block_bytes: int
    tensor_parallel: int
    windows: Annotated[tuple[int, ...], Meta(max_length=64)] = (0,)
    adapters: Annotated[dict[Short, Short], Meta(max_length=4096)] = {}


def difference(here: KVDescription, there: KVDescription) -> str | None:
    """Return a sentence with what differs and what to do; None: the engines can transfer blocks."""
    if here.release != there.release:
        return _sentence("is version", here.release, there.release, "run the same version on both")
    if here.model != there.model and here.weights != there.weights:
        return _sentence("serves", repr(here.model), repr(there.model), "serve the same model on both")
    if here.tensor_parallel != there.tensor_parallel:
        return _sentence(
            "splits the model over", here.tensor_parallel, there.tensor_parallel, "give both one --tensor-parallel-size"
        )
    if here.dtype != there.dtype:
        return _sentence("computes in", here.dtype, there.dtype, "give both the same --dtype")
    if here.kv_format != there.kv_format:
        return _sentence("keeps keys and values in", here.kv_format, there.kv_format, "give both one --kv-cache-dtype")
    if here.block_size != there.block_size:
        return _sentence("has the --block-size", here.block_size, there.block_size, "give both the same")
    if here.kernels != there.kernels:
        return _sentence(
            "computes with the kernels", here.kernels, there.kernels, "give both the same --backend and instruction set"
        )
    if here.weights != there.weights:
        return _sentence(
            f"has weights of {here.model!r} with the digest",
            here.weights,
            there.weights,
            "give both the same files, --quantization and --max-model-len",
        )
    if here.windows != there.windows:
        return _sentence("has KV groups with the windows", here.windows, there.windows, "give both one --max-model-len")
    if here.layers != there.layers:
        return _sentence("has layers with the digest", here.layers, there.layers, "give both the same settings")
    if here.block_bytes != there.block_bytes:
        return _sentence("has the block bytes", here.block_bytes, there.block_bytes, "give both the same settings")
    return _other_adapters(here.adapters, there.adapters)


def _sentence(has: str, here: object, there: object, do: str) -> str:
    return f"This engine {has} {here}, the peer {there}; {do}."


def _other_adapters(here: dict[str, str], there: dict[str, str]) -> str | None:
    if here == there:
        return None
    other = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
    if other:
        return f"The adapter {other[0]!r} has other files at the peer; give both the same ones."
    missing = sorted(here.keys() ^ there.keys())
    where = "this engine" if missing[0] in here else "the peer"
    return f"The adapter {missing[0]!r} is at {where} alone; give both the same --lora."
