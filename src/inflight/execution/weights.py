"""A model's weights as the backend holds them: packed once, then only read.

They are packed in an order in which memory never peaks above the packed model, and a model that this memory cannot hold
is refused. Parts of layers pack their own tensors (`parts`), which come from `checkpoints`.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from inflight.execution.backends.protocol import Backend, Linear, Quantization, Rope, Table
from inflight.execution.checkpoints.expert_names import ExpertNames
from inflight.execution.checkpoints.family_names import FamilyTensors
from inflight.execution.layers.embedding import EmbeddingWeights
from inflight.execution.layers.norm import NormWeights
from inflight.execution.layers.pooler import PoolerWeights
from inflight.execution.layers.token_input import TokenInputTable, TokenInputWeights
from inflight.execution.memory import MachineMemory, gib, memory_of
from inflight.execution.packer import Packer, Progress, TensorSource, WeightSlice
from inflight.execution.parallel.shards import Shard, ShardedTensors
from inflight.execution.parts import PartWeights, load_part
from inflight.execution.rope import rope_settings, rope_table
from inflight.execution.sizes import weight_bytes
from inflight.models.arithmetic import parameters
from inflight.models.errors import ModelError
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec, ModelSpec, NormPlace


class LayerWeights(Struct, frozen=True):
    """One layer. mixer_norm None: the mixer reads the residual stream as it is. mlp_norm None: the MLP does, or where
    layers are side by side, it reads what the mixer reads. scalar: what the residual stream is multiplied by at the
    end. mixer_sum, mlp_sum: norms of the residual stream behind both, which it becomes; what parts read is then
    that."""

    spec: LayerSpec
    mixer_norm: NormWeights | None
    mixer: PartWeights
    mlp_norm: NormWeights | None
    mlp: PartWeights
    token_input: TokenInputWeights | None
    scalar: float
    mixer_sum: NormWeights | None = None
    mlp_sum: NormWeights | None = None

    def with_partial_sums(self) -> LayerWeights:
        """Mark the products that are parts of a sum, of the parts that devices share."""
        mixer, mlp = self.mixer, self.mlp
        return replace(
            self,
            mixer=mixer if self.spec.mixer.whole else mixer.with_partial_sums(),
            mlp=mlp if self.spec.mlp.whole else mlp.with_partial_sums(),
        )


class ModelWeights(Struct, frozen=True):
    """A whole model, ready to run."""

    embedding: EmbeddingWeights
    token_inputs: TokenInputTable | None
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights | None
    output: Linear | None  # the projection to logits; of a tied model the table's own
    pooler: PoolerWeights | None
    ropes: dict[RopeSettings, Rope]
    nbytes: int  # of everything above
    weight_slices: dict[str, WeightSlice]  # of layers' matrices, by their usual names

    def with_partial_sums(self) -> ModelWeights:
        """Return the weights of one device among several, with the products marked that are parts of a sum."""
        return replace(self, layers=tuple(layer.with_partial_sums() for layer in self.layers))

    @property
    def table(self) -> Table:
        """Return the table of the tokens' vectors."""
        return self.embedding.tokens


def load_weights(
    model: ModelSpec,
    source: TensorSource,
    backend: Backend,
    max_positions: int,
    progress: Progress | None = None,
    quantization: Quantization = "none",
    group_size: int = 32,
    memory: MachineMemory | None = None,
    shard: Shard | None = None,
) -> ModelWeights:
    """Packs every tensor of the model once and lets its source go.

    `max_positions` is the longest sequence that will be computed, in tokens. `progress` is called after each tensor.
    `quantization` says which plain matrices are quantized, in int4 with a scale for each `group_size` inputs; those
    that come quantized are packed as they are. `memory` defaults to the backend's. `shard`, of this model: what is
    packed is that part of it. Raises ModelError for a missing or misshapen tensor, for more positions than the model's
    embedding makes sense, and, before anything is allocated, for a model that this memory cannot hold.
    """
    check_positions(model, max_positions)
    named: TensorSource = ExpertNames(FamilyTensors(model, source), model)
    if shard is not None:
        named, model = ShardedTensors(named, shard), shard.spec
    _check_memory(model, backend, max_positions, quantization, group_size, memory or memory_of(backend))
    tables = {settings: rope_table(settings, max_positions) for settings in rope_settings(model)}
    ropes = {settings: backend.pack_rope(table) for settings, table in tables.items()}
    packer = Packer(model, named, backend, progress, quantization, group_size, ropes)
    # The tables first: while one of them is packed its source is in memory too, and nothing else should be yet.
    table, output = packer.tables()
    embedding = EmbeddingWeights.load(packer, table)
    token_inputs = None if model.token_input is None else TokenInputTable.load(packer, model.token_input)
    layers = tuple(load_layer(packer, index) for index in range(len(model.layers)))
    final_norm = NormWeights.load(packer, "model.norm") if model.final_norm else None
    pooler = None if model.pooler is None else PoolerWeights.load(packer, model.pooler, final_norm)
    backend.finish_packing()
    nbytes = packer.nbytes + sum(one.cos.nbytes + one.sin.nbytes for one in tables.values())
    slices = {name: one for name, one in packer.weight_slices.items() if name.startswith("model.layers.")}
    return ModelWeights(embedding, token_inputs, layers, final_norm, output, pooler, ropes, nbytes, slices)


def load_layer(packer: Packer, index: int) -> LayerWeights:
    """Pack one layer of the packer's model."""
    layer = packer.model.layers[index]
    names = {place: f"model.layers.{index}.{name}" for place, name in _norm_names(layer).items()}

    def norm(place: NormPlace) -> NormWeights | None:
        return NormWeights.load(packer, names[place]) if place in names else None

    return LayerWeights(
        spec=layer,
        mixer_norm=norm("before mixer"),
        mixer=load_part(packer, layer.mixer, index, names.get("after mixer")),
        mlp_norm=norm("before mlp"),
        mlp=load_part(packer, layer.mlp, index, names.get("after mlp")),
        token_input=None if layer.token_input is None else TokenInputWeights.load(packer, layer.token_input, index),
        scalar=float(packer.array(f"model.layers.{index}.layer_scalar", 1)[0]) if layer.scalar else 1.0,
        mixer_sum=norm("mixer sum"),
        mlp_sum=norm("mlp sum"),
    )


def _norm_names(layer: LayerSpec) -> dict[NormPlace, str]:
    """Return the norms' names in most families' checkpoints, for such a layer."""
    usual: dict[NormPlace, str] = {
        "before mixer": "input_layernorm",
        "after mixer": "post_attention_layernorm",
        "before mlp": "pre_feedforward_layernorm" if "after mixer" in layer.norms else "post_attention_layernorm",
        "after mlp": "post_feedforward_layernorm",
        "mixer sum": "mixer_sum_norm",
        "mlp sum": "mlp_sum_norm",
    }
    return {place: usual[place] for place in layer.norms}


def check_positions(model: ModelSpec, max_positions: int) -> None:
    """Raise ModelError for more positions than the model's embedding makes sense."""
    if not 1 <= max_positions <= model.longest_model_len:
        raise ModelError(
            f"--max-model-len is {max_positions:,}, but the model has {model.longest_model_len:,} positions; give 1 to "
            f"{model.longest_model_len}."
        )


def _check_memory(
    model: ModelSpec,
    backend: Backend,
    positions: int,
    quantization: Quantization,
    group_size: int,
    memory: MachineMemory,
) -> None:
    """Raise ModelError where weights do not fit: of a host all its memory counts, of a GPU only what is free."""
    # Weights, and a cosine and a sine for every other value of a head that is rotated.
    rotated = 4 * positions * sum(settings.head_dim for settings in rope_settings(model))
    needed = weight_bytes(model, backend.dtype, quantization, group_size) + rotated
    on_gpu = memory.held is not None
    there = memory.available if on_gpu else memory.total
    if needed <= there:
        return
    of = f"{gib(there)} of {memory.limited_by}'s {gib(memory.total)} are free"
    smaller: list[tuple[Quantization, int]] = [
        (held, weight_bytes(model, backend.dtype, held, group_size) + rotated) for held in ("int8", "int4")
    ]
    fits = [
        f"--quantization {held} ({gib(size)})" for held, size in smaller if size <= there and quantization == "none"
    ]
    raise ModelError(
        f"the model needs {gib(needed)} for {parameters(model):,} weights and {positions:,} positions, but "
        f"{of if on_gpu else f'there are {gib(there)} of memory in all'}; take "
        f"{', '.join([*fits, 'a smaller model' if fits else 'a smaller model, --quantization int4'])} or a lower "
        "--max-model-len."
    )
