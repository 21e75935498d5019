"""The backend protocol: what the model runner and the decoder need from a device.

Nothing here is of models, schedulers or requests. What there is to implement, and in which order it is called:

- `backend`: `Backend` packs weights and makes the memory (`handles`), once, at load. `prepare` is called once for each
  forward pass: it gathers the pass's tokens from the input batch, checks positions and block tables, and
  divides the work.
- `forward_pass`: what `prepare` returns, a `ForwardPass`. It runs programs of operations (`execution.ops`) that the
  backend has compiled, and draws tokens; `finish` ends it.

Their arguments are values that know no backend: `number_formats`, `layer_memory` (the KV cache's shape, states of
recurrent layers), `metadata` (where a pass's tokens lie), `parameters` (functions, rotations, routing), `sampling`. Any
caller may make; they know no backend.

`reference` (numpy, slow) runs the operations' definitions, `native` (C++ kernels) is the default on a CPU,
and `null` computes nothing. A backend in the host's memory may take its batch and results from `host`.

Letters: T tokens of the pass, C chunks, S rows of a product (all tokens, or those gathered), H query heads, G key/value
heads, D head dimension, E hidden size, F feed-forward size, V vocabulary, B block size in tokens, X experts.

Batch invariance is part of the contract: what an operation computes for one token, one query or one sampled row must
have the same bits whatever other tokens, queries or rows are in the call.
"""

from __future__ import annotations

from inflight.execution.backends.protocol.backend import (
    Backend,
    Device,
    DeviceMemory,
    HostMemory,
    PendingCopy,
    WeightPacking,
)
from inflight.execution.backends.protocol.forward_pass import ForwardPass, Pass, PassResult, PendingPass
from inflight.execution.backends.protocol.handles import (
    Activation,
    Adapter,
    Delta,
    Experts,
    GateUp,
    Heads,
    InputBatch,
    KVCache,
    Linear,
    LowRank,
    Rope,
    StateCache,
    Table,
    Vector,
)
from inflight.execution.backends.protocol.layer_memory import KVLayer, KVShape
from inflight.execution.backends.protocol.metadata import AttentionMetadata, StateMetadata
from inflight.execution.backends.protocol.number_formats import Array, DType, Hold, Quantization
from inflight.execution.backends.protocol.parameters import Gating, Nonlinearity, RopeTable, Routing
from inflight.execution.backends.protocol.sampling import SampledBatch, SamplingBatch, ScoredBatch
from inflight.models.parts import LayerState

__all__ = [
    "Activation",
    "Adapter",
    "Array",
    "AttentionMetadata",
    "Backend",
    "DType",
    "Delta",
    "Device",
    "DeviceMemory",
    "Experts",
    "ForwardPass",
    "GateUp",
    "Gating",
    "Heads",
    "Hold",
    "HostMemory",
    "InputBatch",
    "KVCache",
    "KVLayer",
    "KVShape",
    "LayerState",
    "Linear",
    "LowRank",
    "Nonlinearity",
    "Pass",
    "PassResult",
    "PendingCopy",
    "PendingPass",
    "Quantization",
    "Rope",
    "RopeTable",
    "Routing",
    "SampledBatch",
    "SamplingBatch",
    "ScoredBatch",
    "StateCache",
    "StateMetadata",
    "Table",
    "Vector",
    "WeightPacking",
]
