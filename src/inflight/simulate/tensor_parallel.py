"""A model split over the GPUs of one replica by tensor parallelism: the cache that each GPU holds."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from inflight.models.spec import ModelSpec


class TensorParallelError(ValueError):
    """A model cannot be split over so many GPUs."""


@dataclass(frozen=True, slots=True)
class CacheShard:
    """The cache of one GPU over all layers with the same window (0: none).

    elements: cached of a token. read: of a token, also by layers that share another one's cache. prompt_flops,
    decode_flops: of a query-key pair, among many queries of a prompt and alone.
    """

    window: int
    elements: int
    read: int
    prompt_flops: float
    decode_flops: float

    def seen(self, pairs: float, queries: int) -> float:
        """Return how many of the query-key pairs of so many queries are within the window."""
        return min(pairs, queries * self.window) if self.window else pairs


def cache_shards(spec: ModelSpec, tensor_parallel: int) -> tuple[CacheShard, ...]:
    """Return the cache of each window. Where there are more GPUs than KV heads, each GPU has a copy of one; latent
    attention's vectors are of all heads at once, so that each GPU has them all."""
    by_window: dict[int, CacheShard] = {}
    for layer, count in spec.kinds_of_layers:
        mixer, read = layer.mixer, layer.mixer.reads
        if read is None:
            continue
        elements = replace(read, heads=max(1, read.heads // tensor_parallel)).elements
        before = by_window.get(mixer.window, CacheShard(mixer.window, 0, 0, 0.0, 0.0))
        by_window[mixer.window] = CacheShard(
            mixer.window,
            before.elements + count * elements * (mixer.writes is not None),
            before.read + count * elements,
            before.prompt_flops + count * mixer.pair_flops() / tensor_parallel,
            before.decode_flops + count * mixer.pair_flops(compressed=True) / tensor_parallel,
        )
    return tuple(by_window.values())


def min_kv_heads(spec: ModelSpec) -> int | None:
    """Return the smallest number of KV heads of any layer; of latent attention 1. None without keys and values."""
    found = (layer.mixer.reads for layer, _ in spec.kinds_of_layers)
    return min((read.heads for read in found if read is not None), default=None)


def check_tensor_parallel(spec: ModelSpec, tensor_parallel: int) -> None:
    """Check that heads can be divided evenly. Raises TensorParallelError."""
    for layer, _ in spec.kinds_of_layers:
        mixer, read = layer.mixer, layer.mixer.reads
        if mixer.shared_heads is not None:
            _check(spec, *mixer.shared_heads, tensor_parallel)
        if read is not None and read.heads % tensor_parallel and tensor_parallel % read.heads:
            raise TensorParallelError(
                f"{spec.name} has {read.heads} KV heads, which {tensor_parallel} GPUs can neither share nor copy "
                "evenly; give a degree that divides them or is a multiple of them."
            )


def _check(spec: ModelSpec, kind: str, heads: int, tensor_parallel: int) -> None:
    if tensor_parallel < 1 or heads % tensor_parallel:
        raise TensorParallelError(
            f"{spec.name} has {heads} {kind}, which {tensor_parallel} GPUs cannot share evenly; give a "
            "tensor-parallel degree that divides them."
        )
