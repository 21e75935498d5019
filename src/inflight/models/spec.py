"""A model's shape as data: layers (each a mixer and an MLP), head, lengths, and the checkpoint's weight format.

`registry` and the families make it of a config.json; `arithmetic` and `sequence_memory` count with it. Sizes are counts
of elements. Equal layers of a model are one object.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from inflight.models.parts import Mixer, Mlp, Part, Weights
from inflight.models.rope import RopeSettings

# Where a layer has norms: of what a part reads, of what comes of it, or of the residual stream with that (a sum that
# the stream then becomes).
NormPlace = Literal["before mixer", "after mixer", "before mlp", "after mlp", "mixer sum", "mlp sum"]
NormKind = Literal["rms", "layer", "layer without bias"]
Pooling = Literal["cls", "mean", "last"]
PoolerActivation = Literal["none", "tanh", "gelu", "relu"]
ScoreActivation = Literal["none", "sigmoid", "softmax"]


class TokenInput(Struct, frozen=True, kw_only=True):
    """Per-layer embeddings, a layer's second input beside the residual stream (Gemma 4).

    They are numbers from a table, and as many projected from the embedding. A gate that reads the residual stream
    weighs them, and they join it behind the MLP, projected and normed.

    Attributes:
        width: Numbers of a token in each layer.
        vocab_size: Rows of the table.
        activation: Of the gate.
    """

    width: int
    vocab_size: int
    activation: str

    def weights(self, hidden: int) -> Weights:
        """Return one layer's weights: the embedding's projection, the gate, and back, with its norm."""
        return Weights(((self.width, hidden), (self.width, hidden), (hidden, self.width)), hidden)


class LayerSpec(Struct, frozen=True):
    """One layer: a mixer, an MLP and the places of its norms.

    Attributes:
        token_input: Its per-layer embeddings; None where the layer has none.
        scalar: One learnt number multiplies the layer's output.
    """

    mixer: Mixer
    mlp: Mlp
    norms: tuple[NormPlace, ...] = ("before mixer", "before mlp")
    token_input: TokenInput | None = None
    scalar: bool = False

    def part_of(self, tensor: str) -> tuple[Part, str] | None:
        """Return the part that a tensor belongs to, by its name behind that of the layer, and its name in the part."""
        parts: tuple[Part, ...] = (self.mixer, self.mlp)
        return next(
            ((part, tensor[len(part.module) + 1 :]) for part in parts if tensor.startswith(part.module + ".")), None
        )

    @property
    def side_by_side(self) -> bool:
        """Return whether the MLP reads what the mixer reads: where one norm is all that a layer has."""
        return self.norms == ("before mixer",)


class Norm(Struct, frozen=True):
    """The norms of a model.

    Attributes:
        offset: Weights are stored less 1.
    """

    kind: NormKind = "rms"
    eps: float = 1e-6
    offset: bool = False


class LearnedPositions(Struct, frozen=True, kw_only=True):
    """A vector for each position, added to that of the token.

    Attributes:
        rows: Of the table.
        unused: Rows at its beginning that stand for no position.
    """

    rows: int
    unused: int = 0

    @property
    def count(self) -> int:
        return self.rows - self.unused


class NextTokens(Struct, frozen=True):
    """Two rows of the output projection: one token's less another's.

    Attributes:
        tied: As of `Head`.
        scale: As of `Head`.
    """

    token_id: int
    other_id: int
    tied: bool
    scale: float


class PoolerLayer(Struct, frozen=True, kw_only=True):
    """A product over a text's vector, an activation function, and a layer norm.

    Attributes:
        name: Of its tensors, without `.weight`.
        next_tokens: Tokens whose rows make the matrix, where it has no tensor of its own.
        norm: Name of the layer norm's tensors, without `.weight`; "" for no norm.
    """

    name: str
    next_tokens: NextTokens | None = None
    inputs: int
    outputs: int
    activation: PoolerActivation = "none"
    bias: bool = True
    norm: str = ""
    norm_bias: bool = True


class Pooler(Struct, frozen=True, kw_only=True):
    """How the last hidden states of a text's tokens become its vector or scores. A request may choose otherwise.

    Attributes:
        pooling: The first token's, the last's, or the mean of all.
        layers: Computed of that, one after the other.
        normalize: Vectors are divided by their length.
        labels: Classes of a classifier; none: the result is a vector.
        activation: Makes a classifier's scores.
    """

    pooling: Pooling
    layers: tuple[PoolerLayer, ...] = ()
    normalize: bool = True
    labels: tuple[str, ...] = ()
    activation: ScoreActivation = "none"

    def outputs(self, hidden_size: int) -> int:
        """Return the numbers in the vector or scores of a text."""
        return self.layers[-1].outputs if self.layers else hidden_size


class Head(Struct, frozen=True):
    """The projection to logits.

    Attributes:
        tied: Its matrix is the input table.
        scale: Multiplies logits.
        soft_cap: Logits become c · tanh(logit / c); 0 leaves them.
    """

    tied: bool = False
    scale: float = 1.0
    bias: bool = False
    soft_cap: float = 0.0


class WeightFormat(Struct, frozen=True):
    """How a quantized checkpoint holds its matrices, by `quantization_config`.

    Without `group_size` and `block` there is a scale for each output, or one in all.

    Attributes:
        bits: Of a weight; None where the config does not say.
        group_size: Weights along an input that share a scale.
        block: Weights [outputs, inputs] that share a scale.
        symmetric: There are no zero points; None where the config does not say.
        act_order: Inputs are grouped by the size of activations, not by their index.
        layout: The method's own name of the order of packed tensors.
        static_activations: It has scales for activations, too. This engine has its own: one for each 32 numbers of a
            token, as they come.
        element_bytes: Bytes of an element of a layer's matrix on average, where a file mixes formats.
        head_bytes: Bytes of an element of the output projection (of a tied model the table), where that is quantized.
    """

    method: str
    bits: int | None
    group_size: int | None = None
    block: tuple[int, int] | None = None
    symmetric: bool | None = None
    act_order: bool = False
    layout: str | None = None
    static_activations: bool = False
    element_bytes: float | None = None
    head_bytes: float | None = None


class ModelSpec(Struct, frozen=True, kw_only=True):
    """One model of layers over one stream of tokens.

    Attributes:
        name: Of the folder or the well-known name it was read by; "" where there is none.
        runs: This engine can run it; others are described, to be planned with.
        head: None where it continues no text.
        bos_token_id: Token before a text.
        checkpoint_dtype: As config.json names it, e.g. "bfloat16"; None where it does not say.
        weight_format: None where weights are not quantized.
        residual_scale: Multiplies what a layer adds to the residual stream.
        pooler: Where it embeds or classifies texts.
        positions: Vectors added to the embedding by position.
        token_types: Vectors of which one is added to the embedding, by the text of a pair.
        embedding_norm: A norm stands before the first layer.
        final_norm: A norm stands behind the last layer.
        length: Tokens of the texts that its authors use it for, where that is less than it has positions for.
        names: Parts of tensors' names that its checkpoints spell differently, as of `Family.names`.
        roots: Beginnings of its tensors' names, instead of the usual.
    """

    name: str
    family: str
    runs: bool
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm: Norm
    head: Head | None
    embedding_scale: float
    max_position_embeddings: int
    end_token_ids: tuple[int, ...]
    bos_token_id: int | None
    checkpoint_dtype: str | None
    weight_format: WeightFormat | None
    residual_scale: float = 1.0
    pooler: Pooler | None = None
    positions: LearnedPositions | None = None
    token_types: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    length: int | None = None
    names: tuple[tuple[str, str], ...] = ()
    roots: tuple[str, ...] = ()

    @property
    def kinds_of_layers(self) -> list[tuple[LayerSpec, int]]:
        """List each different layer, and how many of it there are."""
        counts: dict[int, int] = {}
        for layer in self.layers:
            counts[id(layer)] = counts.get(id(layer), 0) + 1
        return [(layer, counts.pop(id(layer))) for layer in self.layers if id(layer) in counts]

    @property
    def has_experts(self) -> bool:
        """Return whether layers have a mixture of experts."""
        return any(layer.mlp.experts for layer in self.layers)

    @property
    def encoder_only(self) -> bool:
        """Return whether tokens see those behind them: a text is then computed in one step or not at all, and nothing
        of it is cached for another."""
        return any(not layer.mixer.causal for layer in self.layers)

    @property
    def pools_all_tokens(self) -> bool:
        """Return whether a text needs one step: in an encoder, or where all its tokens count for the vector."""
        return self.encoder_only or (self.pooler is not None and self.pooler.pooling != "last")

    @property
    def token_input(self) -> TokenInput | None:
        """Return the per-layer embeddings; all layers that have them have the same."""
        return next((layer.token_input for layer in self.layers if layer.token_input is not None), None)

    @property
    def ropes(self) -> tuple[RopeSettings, ...]:
        """Return every rotation that a layer has, once; first that of layers which see all."""
        mixers = sorted((layer.mixer for layer, _ in self.kinds_of_layers), key=lambda mixer: mixer.window > 0)
        return tuple(dict.fromkeys(mixer.rope for mixer in mixers if mixer.rope is not None))

    @property
    def rope(self) -> RopeSettings | None:
        """Return the rotation of layers that see all; None without one, and of families that are only described."""
        return next(iter(self.ropes), None)

    @property
    def longest_model_len(self) -> int:
        """Return the largest max_model_len that makes sense, in tokens: beyond `max_position_embeddings` where rope
        stretches."""
        return self.max_position_embeddings if self.rope is None else self.rope.longest

    @property
    def default_model_len(self) -> int:
        """Return the default of max_model_len, in tokens.

        `dynamic` and `longrope` stay at the length that the model was trained for: their frequencies are fixed for the
        configured maximum, so a larger one changes every answer and must be asked for.
        """
        if self.length is not None:
            return self.length
        if self.rope is None or self.rope.kind == "dynamic":
            return self.max_position_embeddings
        if self.rope.kind == "longrope":
            return min(self.max_position_embeddings, self.rope.original_length)
        return self.rope.longest
