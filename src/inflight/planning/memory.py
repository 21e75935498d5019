"""How much memory weights, activations, keys and values take on a GPU, and how many sequences that leaves room for.

Knows bytes; not time. GB are 10⁹ bytes as on data sheets, GiB 2³⁰.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight.simulate.hardware import Gpu, find_gpu
from inflight.simulate.roofline import check_split
from inflight.simulate.shape import ITEM_BYTES, ModelShape, Precision, read_shape

GIB = 2**30
# Of the memory on the data sheet that an engine takes; the rest is left to the driver and to fragmentation.
MEMORY_SHARE = 0.95
# What CUDA, kernels' workspaces and graphs take, and where several GPUs share a replica the buffers of collectives, as
# aiconfigurator sets it aside; together with MEMORY_SHARE about the 0.9 that vLLM takes of an 80 GB GPU by default.
SYSTEM_BYTES = 3.5 * GIB
COLLECTIVE_BYTES = 0.39e9
LOGIT_BYTES = 4  # logits are computed in float32


@dataclass(frozen=True, slots=True)
class KVCacheEstimate:
    """bytes_per_token: on one GPU. bytes: of all sequences on one GPU, in whole blocks. bytes_in_all: on all GPUs of
    the replica. blocks: of all sequences."""

    bytes_per_token: int
    blocks: int
    bytes: int
    bytes_in_all: int


def estimate_kv_cache(
    shape: ModelShape | str,
    tokens: int,
    sequences: int = 1,
    *,
    precision: Precision = "bf16",
    tensor_parallel: int = 1,
    block_size: int = 16,
) -> KVCacheEstimate:
    """Memory of the keys and values of `sequences` sequences of `tokens` tokens each.

    Bytes per token and GPU = 2 · L · max(1, K / TP) · h · b, with L layers, K *KV* heads (not query heads: of
    Llama-3-70B's 64 query heads eight share each one, so that counting query heads tells eight times too much), h
    elements of a head and b bytes of an element. Where TP exceeds K, heads are copied, and the sum grows. Blocks of a
    sequence = ⌈tokens / block_size⌉.

    shape: a ModelShape, or what `read_shape` takes. Raises ShapeError for an unknown model, RooflineError where heads
    cannot be split, ValueError for counts below 1.
    """
    shape = read_shape(shape) if isinstance(shape, str) else shape
    check_split(shape, tensor_parallel)
    if min(tokens, sequences, block_size) < 1:
        raise ValueError(
            f"{sequences} sequences of {tokens} tokens in blocks of {block_size}: each must be at least 1."
        )
    per_token = 2 * shape.layers * shape.kv_heads_per_gpu(tensor_parallel) * shape.head_dim * ITEM_BYTES[precision]
    blocks = sequences * math.ceil(tokens / block_size)
    on_one = blocks * block_size * per_token
    return KVCacheEstimate(per_token, blocks, on_one, on_one * tensor_parallel)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes on one GPU of a replica: what there is, what is taken, what is left for keys and values.

    tokens, blocks: that fit in kv_bytes. tokens_per_sequence: that was asked about. sequences: of that length that fit
    at once; 0 where not even one does.
    """

    memory_bytes: float
    weight_bytes: float
    activation_bytes: float
    reserve_bytes: float
    kv_bytes: float
    kv_bytes_per_token: int
    blocks: int
    tokens: int
    tokens_per_sequence: float
    sequences: int


def max_concurrent_sequences(
    shape: ModelShape | str,
    gpu: Gpu | str,
    tokens_per_sequence: float,
    *,
    tensor_parallel: int = 1,
    weights: Precision = "bf16",
    kv: Precision = "bf16",
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    block_size: int = 16,
) -> MemoryBudget:
    """Sequences of so many tokens that have their keys and values in one replica's memory at once.

    KV bytes per GPU = memory · 0.95 - weights / TP - activations - 3.76 GB (4.15 GB with TP > 1), where activations =
    2 bytes · max_num_batched_tokens · (4d + (H + 2K)h / TP + 3F / TP) + 4 bytes · max_num_seqs · V / TP: hidden states,
    one layer's projections and gated MLP, and logits. Blocks = ⌊KV bytes / (block_size · bytes per token and GPU)⌋;
    sequences = ⌊blocks / ⌈tokens_per_sequence / block_size⌉⌋. tokens_per_sequence: for a mixture, the mean over time (a
    sequence stands at its prompt and half of its answer, and long answers stand longer): `Traffic.mean_context`.

    shape, gpu: objects, or names as `read_shape` and `find_gpu` take them. Errors as there and in `estimate_kv_cache`.
    """
    shape = read_shape(shape) if isinstance(shape, str) else shape
    gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
    if tokens_per_sequence < 1:
        raise ValueError(f"A sequence of {tokens_per_sequence:g} tokens; give at least 1.")
    per_token = estimate_kv_cache(
        shape, 1, precision=kv, tensor_parallel=tensor_parallel, block_size=block_size
    ).bytes_per_token
    weight_bytes = shape.weight_bytes(weights) / tensor_parallel
    projections = (shape.heads + 2 * shape.kv_heads) * shape.head_dim + 3 * (shape.ffn + shape.shared_ffn)
    activations = ITEM_BYTES["bf16"] * max_num_batched_tokens * (4 * shape.hidden + projections / tensor_parallel)
    activations += LOGIT_BYTES * max_num_seqs * shape.vocab / tensor_parallel
    taken = SYSTEM_BYTES + (COLLECTIVE_BYTES if tensor_parallel > 1 else 0.0)
    left = gpu.memory_bytes * MEMORY_SHARE - weight_bytes - activations - taken
    blocks = max(0, int(left // (per_token * block_size)))
    return MemoryBudget(
        memory_bytes=gpu.memory_bytes,
        weight_bytes=weight_bytes,
        activation_bytes=activations,
        reserve_bytes=taken + gpu.memory_bytes * (1 - MEMORY_SHARE),
        kv_bytes=max(0.0, left),
        kv_bytes_per_token=per_token,
        blocks=blocks,
        tokens=blocks * block_size,
        tokens_per_sequence=tokens_per_sequence,
        sequences=blocks // math.ceil(tokens_per_sequence / block_size),
    )
