"""Memory of weights, activations, keys and values on a GPU, and the sequences that fit. GB are 10⁹ bytes, GiB 2³⁰.

KV bytes per GPU = memory · 0.95 - weights / TP - activations - 3.76 GB, or a tenth of the memory where that is less
(with TP > 1 another 0.39 GB) - states of max_num_seqs sequences / TP - snapshots of states
(`default_checkpoints`) / TP, where activations = 2 bytes · max_num_batched_tokens · (4d + (H + 2K)h / TP +
3F / TP) + 4 bytes · max_num_seqs · V / TP. Blocks = ⌊KV bytes / bytes of a block⌋; sequences = ⌊blocks /
⌈tokens_per_sequence / block_size⌉⌋. Bytes of a block = those of a sequence of `tokens_per_sequence` tokens
(`estimate_kv_cache`, without states) / its blocks: where no layer has a window, block_size · bytes per token and GPU.
max_loras slots of adapters take 2 bytes · max_lora_rank · (outputs + inputs) of every module that all tokens pass. Of
latent attention each GPU has the matrices whole that compress, beside its part of all other weights.

With more than tensor parallelism, weights = (attention, dense MLPs, shared experts) / TP + experts / (TP · DP), of the
layers of the largest of PP stages, beside the larger of its two tables; keys and values and states are those of these
layers; tokens of a step and sequences are divided among DP groups, tokens among PP batches, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight.core.types.sampling import DEFAULT_RANK
from inflight.models.arithmetic import (
    Packing,
    adapter_parameters,
    step_weight_bytes,
    table_parameters,
    weight_bytes,
)
from inflight.models.known import read_model
from inflight.models.sequence_memory import default_checkpoints, state_bytes
from inflight.models.spec import LayerSpec, ModelSpec
from inflight.simulate.hardware import ITEM_BYTES, Gpu, Precision, find_gpu, packing
from inflight.simulate.parallelism import (
    Parallelism,
    as_parallelism,
    check_parallelism,
    largest_stage,
)
from inflight.simulate.shards import cache_shards, replicated_elements

GIB = 2**30
MEMORY_SHARE = 0.95  # of the data sheet's memory, for an engine; the driver and fragmentation take the rest
# CUDA, kernels' workspaces and graphs, and with several GPUs a replica the buffers of collectives, as aiconfigurator
# reserves them; together with MEMORY_SHARE about the 0.9 that vLLM takes of an 80 GB GPU by default, which smaller ones
# have as SYSTEM_SHARE.
SYSTEM_BYTES = 3.5 * GIB
SYSTEM_SHARE = 0.1
COLLECTIVE_BYTES = 0.39e9
LOGIT_BYTES = 4  # logits are computed in float32


@dataclass(frozen=True, slots=True)
class KVCacheEstimate:
    """Memory of keys and values.

    bytes_per_token: growth on one GPU with each token. bytes: of all sequences on one GPU, in whole blocks, with
    windows and recurrent states. bytes_in_all: on all GPUs of the replica. blocks: of all sequences.
    """

    bytes_per_token: int
    blocks: int
    bytes: int
    bytes_in_all: int


def estimate_kv_cache(
    model: ModelSpec | str,
    tokens: int,
    sequences: int = 1,
    *,
    precision: Precision = "bf16",
    tensor_parallel: Parallelism | int = 1,
    block_size: int = 16,
) -> KVCacheEstimate:
    """Return the memory of the keys and values of `sequences` sequences of `tokens` tokens each.

    Bytes per token and GPU = 2 · L · max(1, K / TP) · h · b, with L layers, K *KV* heads (not query heads: eight of
    Llama-3-70B's 64 query heads share each one, so counting query heads gives eight times too much), h elements of a
    head and b bytes of an element. Where TP exceeds K, heads are copied, and the sum grows. Blocks of a sequence =
    ⌈tokens / block_size⌉.

    L counts layers that keep every token. A layer with a window keeps its window's tokens at most, recurrent layers
    keep a state of fixed size (`sequence_memory.state_bytes` / TP): both are in `bytes`, not in `bytes_per_token`.
    Latent attention keeps rank + rotated elements a token and layer, on every GPU.

    tensor_parallel: GPUs that share the model by tensor parallelism, or any `Parallelism`: under data-parallel
    attention each group of TP GPUs has the sequences of its own, and a pipeline's stage the keys and values of its own
    layers, of the largest stage here.

    model: a ModelSpec, or a name as `read_model` takes. Raises ModelError for an unknown model, ParallelismError
    where heads cannot be split, ValueError for counts below 1.
    """
    spec = read_model(model) if isinstance(model, str) else model
    parallelism = as_parallelism(tensor_parallel)
    check_parallelism(spec, parallelism)
    if min(tokens, sequences, block_size) < 1:
        raise ValueError(
            f"{sequences} sequences of {tokens} tokens in blocks of {block_size}: each must be at least 1."
        )
    item, each = ITEM_BYTES[precision] * largest_stage(spec, parallelism), math.ceil(tokens / block_size)
    parts = cache_shards(spec, parallelism.tensor)
    growing = round(item * sum(one.elements for one in parts if not one.window))
    kept = item * sum(one.elements * one.kept(each * block_size) for one in parts)
    states = largest_stage(spec, parallelism) * state_bytes(spec) / parallelism.tensor
    on_one = round(math.ceil(sequences / parallelism.data_attention) * (kept + states))
    return KVCacheEstimate(growing, sequences * each, on_one, on_one * parallelism.gpus)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes on one GPU of a replica: in all, taken, and left for keys and values.

    kv_bytes_per_token: mean over a sequence of `tokens_per_sequence`, windows' tokens shared among all. state_bytes:
    recurrent states of all request slots, reserved before keys and values, and of state_snapshots copies of them, as
    many as an engine takes by default, each as large as state_blocks blocks. adapter_bytes: all slots of adapters.
    groups: data-parallel groups, each of which has group_blocks of block_size tokens in its kv_bytes.
    """

    memory_bytes: float
    weight_bytes: float
    activation_bytes: float
    reserve_bytes: float
    state_bytes: float
    state_snapshots: int
    state_blocks: int
    adapter_bytes: float
    kv_bytes: float
    kv_bytes_per_token: float
    tokens_per_sequence: float
    groups: int
    group_blocks: int
    block_size: int

    @property
    def blocks(self) -> int:
        """Return the blocks that fit, of all groups together."""
        return self.groups * self.group_blocks

    @property
    def tokens(self) -> int:
        """Return the tokens that fit, of all groups together."""
        return self.blocks * self.block_size

    @property
    def sequences(self) -> int:
        """Return the sequences of tokens_per_sequence tokens that fit at once; 0 where not even one does."""
        return self.groups * (self.group_blocks // math.ceil(self.tokens_per_sequence / self.block_size))


def max_concurrent_sequences(
    model: ModelSpec | str,
    gpu: Gpu | str,
    tokens_per_sequence: float,
    *,
    tensor_parallel: Parallelism | int = 1,
    weights: Precision = "bf16",
    kv: Precision = "bf16",
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    block_size: int = 16,
    max_loras: int = 0,
    max_lora_rank: int = DEFAULT_RANK,
    packed: Packing | None = None,
) -> MemoryBudget:
    """Return how many sequences of a length have their keys and values in one replica's memory at once, by the formula
    above.

    Args:
        model, gpu: Objects, or names as `read_model` and `find_gpu` take them. Errors as there and in
            `estimate_kv_cache`.
        tokens_per_sequence: For a mixture, the mean over time, `Traffic.mean_context`.
        packed: Bytes of the weights; None: of `weights` as this engine packs them.
    """
    spec = read_model(model) if isinstance(model, str) else model
    gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
    if tokens_per_sequence < 1:
        raise ValueError(f"A sequence of {tokens_per_sequence:g} tokens; give at least 1.")
    parallelism = as_parallelism(tensor_parallel)
    check_parallelism(spec, parallelism)
    packed = packed or packing(weights, spec.has_experts)
    of_weights, stage = _weight_bytes(spec, parallelism, packed), largest_stage(spec, parallelism)
    rows = math.ceil(max_num_seqs / parallelism.data_attention)
    activations = _activation_bytes(spec, parallelism, math.ceil(max_num_batched_tokens / parallelism.batches), rows)
    states = rows * (state := stage * state_bytes(spec) / parallelism.tensor)
    taken = min(SYSTEM_BYTES, SYSTEM_SHARE * gpu.memory_bytes) + (COLLECTIVE_BYTES if parallelism.gpus > 1 else 0.0)
    adapters = max_loras * ITEM_BYTES["bf16"] * adapter_parameters(spec, max_lora_rank)
    left = gpu.memory_bytes * MEMORY_SHARE - of_weights - activations - taken - states - adapters
    snapshots = default_checkpoints(rows, state, max(0.0, left)) if state else 0
    states, left = states + snapshots * state, left - snapshots * state
    per_block = _block_bytes(spec, parallelism, kv, math.ceil(tokens_per_sequence / block_size), block_size)
    return MemoryBudget(
        memory_bytes=gpu.memory_bytes,
        weight_bytes=of_weights,
        activation_bytes=activations,
        reserve_bytes=taken + gpu.memory_bytes * (1 - MEMORY_SHARE),
        state_bytes=states,
        state_snapshots=snapshots,
        state_blocks=math.ceil(state / per_block) if state else 0,
        adapter_bytes=adapters,
        kv_bytes=max(0.0, left),
        kv_bytes_per_token=per_block / block_size,
        tokens_per_sequence=tokens_per_sequence,
        groups=parallelism.data_attention,
        group_blocks=max(0, int(left // per_block)),
        block_size=block_size,
    )


def _block_bytes(spec: ModelSpec, parallelism: Parallelism, kv: Precision, blocks: int, block_size: int) -> float:
    """Return the bytes of a block on a GPU of the largest stage, mean over a sequence of so many blocks."""
    elements = sum(part.elements * part.kept(blocks * block_size) for part in cache_shards(spec, parallelism.tensor))
    return largest_stage(spec, parallelism) * ITEM_BYTES[kv] * elements / blocks


def _weight_bytes(spec: ModelSpec, parallelism: Parallelism, packed: Packing) -> float:
    """Return the bytes of weights on a GPU of the largest stage. A pipeline's first stage has the input table and its
    last the output projection; the larger one is counted. Tensor parallelism does not divide all matrices
    (`replicated_elements`)."""
    every = step_weight_bytes(spec, packed)
    experts = every - step_weight_bytes(spec, packed, 0.0)
    head = 0.0 if spec.head is None else table_parameters(spec) * packed.head
    tables = weight_bytes(spec, packed) - every
    ends = tables + head if parallelism.pipeline == 1 else max(tables, head)
    replicated = sum(
        count * replicated_elements(layer.mixer, spec.hidden_size) for layer, count in spec.kinds_of_layers
    )
    copies = 1 - 1 / parallelism.tensor  # beside the part that is counted among the divided
    copied = replicated * packed.matrix * copies
    layers = (every - experts - head) / parallelism.tensor + copied + experts / parallelism.stage_gpus
    return largest_stage(spec, parallelism) * layers + ends / parallelism.tensor


def _activation_bytes(spec: ModelSpec, parallelism: Parallelism, tokens: int, rows: int) -> float:
    """Return the bytes of hidden states, the widest layer's projections and gated MLP (of a mixture the experts that a
    token picks and those that all share), and logits, of one batch of a step. Experts compute what comes from all
    data-parallel groups, on average as much as a group has."""
    widest = max(_projected(layer, spec.hidden_size) for layer, _ in spec.kinds_of_layers) / parallelism.tensor
    hidden = ITEM_BYTES["bf16"] * tokens * (4 * spec.hidden_size + widest)
    return hidden + LOGIT_BYTES * rows * spec.vocab_size / parallelism.tensor


def _projected(layer: LayerSpec, hidden: int) -> int:
    """Return the elements that a layer makes of one token: its projections' outputs and three vectors as wide as its
    MLP."""
    return layer.mixer.weights(hidden).outputs - hidden + 3 * layer.mlp.passed_width
