"""Describes an engine's blocks, so that two engines find out whether they can exchange them.

Knows what must be equal, and a sentence for each that is not. Does not know how it comes to be known.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Short = Annotated[str, Meta(max_length=1024)]


class KVDescription(msgspec.Struct, frozen=True, kw_only=True):
    """release: of this program. model: its name, for sentences; weights: a digest of its files. dtype: of activations;
    kv_format: of keys and values. kernels: what has computed them, and laid them out in a block. layers: a digest of
    what each layer keeps in a block. adapters: digests of the adapters' files, by their names."""

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
    adapters: Annotated[dict[Short, Short], Meta(max_length=4096)] = {}


def difference(here: KVDescription, there: KVDescription) -> str | None:
    """Why blocks of one mean nothing to the other, in a sentence with both and what to do; None: they do."""
    if here.release != there.release:
        return _sentence("is version", here.release, there.release, "run the same version on both")
    if here.model != there.model and here.weights != there.weights:
        return _sentence("serves", repr(here.model), repr(there.model), "serve the same model on both")
    if here.weights != there.weights:
        return _sentence(
            f"has weights of {here.model!r} with the digest", here.weights, there.weights, "give both the same files"
        )
    if here.tensor_parallel != there.tensor_parallel:
        return _sentence(
            "splits the model over", here.tensor_parallel, there.tensor_parallel, "give both one --tensor-parallel-size"
        )
    if here.dtype != there.dtype:
        return _sentence("computes in", here.dtype, there.dtype, "give both the same --dtype")
    if here.kv_format != there.kv_format:
        return _sentence("keeps keys and values in", here.kv_format, there.kv_format, "give both one --kv-cache-dtype")
    if here.block_size != there.block_size:
        return _sentence(
            "has blocks of so many tokens:", here.block_size, there.block_size, "give both the same --block-size"
        )
    if here.kernels != there.kernels:
        return _sentence(
            "computes with the kernels", here.kernels, there.kernels, "give both the same backend and instruction set"
        )
    if (here.layers, here.block_bytes) != (there.layers, there.block_bytes):
        return _sentence(
            "has blocks of so many bytes:", here.block_bytes, there.block_bytes, "give both the same settings"
        )
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
