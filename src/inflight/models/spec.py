"""A model's shape as data: layers (each a mixer and an MLP), head, lengths, and the checkpoint's weight format.

Knows shapes and kinds alone. Where they are read from is known to `registry` and the families, what follows from them
to `arithmetic`. Sizes are counts of elements. Equal layers of a model are one object.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from inflight.models.rope import RopeSettings

QkNorm = Literal["none", "head", "all"]
# Where a layer has norms: of what a part reads, of what comes of it, or of the residual stream with that (a sum that
# the stream then becomes).
NormPlace = Literal["before mixer", "after mixer", "before mlp", "after mlp", "mixer sum", "mlp sum"]
CLAMPED_SWIGLU = "clamped_swiglu"  # of an MLP: gpt-oss's, of which no config.json says the name
Scores = Literal["softmax", "sigmoid", "sparsemixer"]
NormKind = Literal["rms", "layer", "layer without bias"]
Pooling = Literal["cls", "mean", "last"]
PoolerActivation = Literal["none", "tanh", "gelu", "relu"]
ScoreActivation = Literal["none", "sigmoid", "softmax"]


# -- mixers: what lets a token see others ------------------------------------------------------------------------------
class Attention(Struct, frozen=True, kw_only=True):
    """Softmax attention over cached keys and values, query heads in groups that share a KV head.

    causal: a token sees those before it alone; else those behind it, too, so that a text is computed whole and nothing
    is kept of it. window: tokens that a query looks back over, itself included (not causal: over so many to each side,
    itself not counted); 0 sees all. chunked: the window restarts at its
    multiples instead of sliding. qk_norm: RMS norms of queries and keys, per head or over all heads at once;
    qk_norm_last: of what is rotated (per head). sinks: a learnt logit for each head that takes probability and has no
    value. gate: queries bring a gate of their own width. scale: of scores; 0 is head_dim^-0.5. soft_cap c: scores
    become c · tanh(score / c); 0 leaves them. rope: None where positions are not rotated, and of families that are only
    described. v_norm: an RMS norm of each head's values, without a weight. k_eq_v: keys as they are projected are the
    values, too. kv_layer: the earlier layer whose keys and values it reads; it projects queries alone, and keeps
    nothing. relative_buckets: of learnt numbers for each head, one of which is added to a score by how far the key is
    before or behind the query (`backends.position_bias`), the same in all layers; 0: none.
    """

    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    window: int = 0
    chunked: bool = False
    qk_norm: QkNorm = "none"
    qk_norm_last: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    gate: bool = False
    scale: float = 0.0
    soft_cap: float = 0.0
    rope: RopeSettings | None = None
    v_norm: bool = False
    k_eq_v: bool = False
    kv_layer: int | None = None
    relative_buckets: int = 0

    @property
    def projected(self) -> int:
        """Return how many of keys and values it projects: 0, 1 or 2."""
        return 0 if self.kv_layer is not None else 1 if self.k_eq_v else 2

    @property
    def qkv_rows(self) -> int:
        """Rows of the stacked query, key and value projection, a gate of the queries included."""
        return ((2 if self.gate else 1) * self.heads + self.projected * self.kv_heads) * self.head_dim


class LatentAttention(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: of a token, one compressed vector and one rotated key are cached for all heads.

    q_lora_rank 0: queries are projected directly. rope: of the rotated key and its part of queries; its score_factor
    multiplies the scale of scores.
    """

    heads: int
    kv_lora_rank: int
    q_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    bias: bool = False
    rope: RopeSettings | None = None

    @property
    def cached_width(self) -> int:
        """Numbers that are cached of a token: the compressed vector, behind it the rotated key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def scale(self) -> float:
        """Return the factor of attention scores."""
        factor = 1.0 if self.rope is None else self.rope.score_factor
        return float((self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5 * factor)


class LinearAttention(Struct, frozen=True, kw_only=True):
    """Gated DeltaNet: a matrix [key_dim, value_dim] of state for each value head, after a short convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int


class Mamba(Struct, frozen=True, kw_only=True):
    """A selective state space of `inner` channels with `state` values each, after a short convolution.

    norms: RMS norms of the step size and of both projections of the state (Jamba).
    """

    inner: int
    state: int
    dt_rank: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False
    norms: bool = False


class ShortConvolution(Struct, frozen=True, kw_only=True):
    """A gated depthwise convolution over the last `kernel` tokens."""

    kernel: int
    bias: bool = False


Mixer = Attention | LatentAttention | LinearAttention | Mamba | ShortConvolution


# -- MLPs --------------------------------------------------------------------------------------------------------------
class Dense(Struct, frozen=True, kw_only=True):
    """One MLP for every token. gated: three matrices, act(gate) · up; else two."""

    width: int
    activation: str
    gated: bool = True
    bias: bool = False


class Router(Struct, frozen=True, kw_only=True):
    """How a token's logits of the experts become the `top_k` it passes and their weights (DeepSeek-V3 has all of it).

    scores: of all experts, from the logits. bias: one value an expert, of the logits. correction: one value an expert
    that counts where experts are picked and not in their weights. groups: experts in so many equal groups; only those
    of the `top_groups` with the largest sums of their `group_best` best scores can be picked; 1 is all. renormalize:
    the weights of the picked are divided by their sum + `sum_offset`; then come all times `scale`. expert_scale: and
    times one value an expert. norm: the router reads the residual stream through an RMS norm of its own.

    sparsemixer (Phi-3.5-MoE): experts are picked one after the other by their logits, and each is weighed by the
    softmax over those left whose logits are near its own; `jitter` says how near (`execution.backends.protocol`).
    """

    scores: Scores = "softmax"
    renormalize: bool = False
    sum_offset: float = 0.0
    jitter: float = 0.0
    bias: bool = False
    correction: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    scale: float = 1.0
    expert_scale: bool = False
    norm: bool = False


class MoE(Struct, frozen=True, kw_only=True):
    """Gated experts of which a router picks `top_k` for each token.

    shared_width: of the experts that every token passes, together; 0 for none. shared_gate: a learnt gate weighs them.
    bias: biases within the experts. separate_shared: the shared experts and the routed ones are two MLPs side by side
    (Gemma 4), each with a norm before it (of the shared one the layer's) and one after it; the norm after both takes
    their sum.
    """

    experts: int
    top_k: int
    width: int
    activation: str
    router: Router = Router()
    bias: bool = False
    shared_width: int = 0
    shared_gate: bool = False
    separate_shared: bool = False


Mlp = Dense | MoE


# -- the whole ---------------------------------------------------------------------------------------------------------
class TokenInput(Struct, frozen=True, kw_only=True):
    """Per-layer embeddings, a layer's second input beside the residual stream (Gemma 4): `width` numbers
    from a table of `vocab_size` rows, and as many projected from the embedding. A gate that reads the residual stream
    weighs them, and they join it behind the MLP, projected and normed."""

    width: int
    vocab_size: int
    activation: str


class LayerSpec(Struct, frozen=True):
    """token_input: None where the layer has none. scalar: all that leaves the layer is times one learnt number."""

    mixer: Mixer
    mlp: Mlp
    norms: tuple[NormPlace, ...] = ("before mixer", "before mlp")
    token_input: TokenInput | None = None
    scalar: bool = False

    @property
    def side_by_side(self) -> bool:
        """Whether the MLP reads what the mixer reads: where one norm is all that a layer has."""
        return self.norms == ("before mixer",)


class Norm(Struct, frozen=True):
    """offset: weights are stored less 1."""

    kind: NormKind = "rms"
    eps: float = 1e-6
    offset: bool = False


class LearnedPositions(Struct, frozen=True, kw_only=True):
    """A vector for each position, added to that of the token: the position's row of a table of `rows` rows, of which
    the first `unused` stand for no position."""

    rows: int
    unused: int = 0

    @property
    def count(self) -> int:
        """Positions that there are."""
        return self.rows - self.unused


class NextTokens(Struct, frozen=True):
    """Two rows of the output projection, one token's less another's. tied, scale: as `Head` has them."""

    token_id: int
    other_id: int
    tied: bool
    scale: float


class PoolerLayer(Struct, frozen=True, kw_only=True):
    """A product over a text's vector, an activation function, and a layer norm where `norm` names one. name, norm: of
    its tensors, without `.weight`. next_tokens: whose rows the matrix is made of, where it has no tensor of its own."""

    name: str
    next_tokens: NextTokens | None = None
    inputs: int
    outputs: int
    activation: PoolerActivation = "none"
    bias: bool = True
    norm: str = ""
    norm_bias: bool = True


class Pooler(Struct, frozen=True, kw_only=True):
    """How the last hidden states of a text's tokens become its vector or scores: the first token's, the last's, or
    the mean of all; then `layers`, one after the other. labels: the classes of a classifier, whose scores
    `activation` makes; none: the result is a vector, divided by its length if `normalize`. A request may choose
    otherwise."""

    pooling: Pooling
    layers: tuple[PoolerLayer, ...] = ()
    normalize: bool = True
    labels: tuple[str, ...] = ()
    activation: ScoreActivation = "none"

    def outputs(self, hidden_size: int) -> int:
        """Return the numbers in the vector or scores of a text."""
        return self.layers[-1].outputs if self.layers else hidden_size


class Head(Struct, frozen=True):
    """The projection to logits. tied: the input table's own weights. scale: that logits are multiplied by. soft_cap c:
    they become c · tanh(logit / c); 0 leaves them."""

    tied: bool = False
    scale: float = 1.0
    bias: bool = False
    soft_cap: float = 0.0


class WeightFormat(Struct, frozen=True):
    """How a quantized checkpoint holds its matrices, by `quantization_config`.

    bits: of a weight, None where it does not say. group_size: weights along an input that share a scale. block: weights
    [outputs, inputs] that do. What is None has a scale for each output or one in all. symmetric: there are no zero
    points; None where it does not say. act_order: inputs are grouped by the size of activations, not by their place.
    layout: how packed tensors lie, by the method's own name for it. static_activations: it brings scales for
    activations, too (this engine has its own: one for each 32 of a token, as they come). element_bytes: that an element
    of a layer's matrix takes here on average, where a file mixes formats. head_bytes: that one of the output projection
    (of a tied model the table) takes here, where that is quantized, too.
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
    """One model of layers over one stream of tokens. runs: whether this engine can run it; the others are described, to
    be planned with. head: None where it continues no text. pooler: where it embeds or classifies texts. positions,
    token_types: what is added to the embedding of a token: a vector for its position, and one of so many for the text
    of a pair that it is of. embedding_norm, final_norm: norms before the first layer and behind the last. length: of
    the texts that its authors use it for, in tokens, where that is less than it has positions for. residual_scale: that
    what a layer adds to the residual stream is multiplied by. names: parts of tensors' names that its checkpoints spell
    differently, as `Family.names` has them; roots: what they may begin with, instead of the usual."""

    name: str  # of the folder or the well-known name it was read by; "" where there is none
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
    checkpoint_dtype: str | None  # as config.json names it, e.g. "bfloat16"; None where it does not say
    weight_format: WeightFormat | None  # None: not quantized
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
    def encoder_only(self) -> bool:
        """Whether tokens see those behind them, so that a text is computed in one step or not at all, and nothing of it
        is kept for another."""
        return any(isinstance(layer.mixer, Attention) and not layer.mixer.causal for layer in self.layers)

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
        """Every rotation that a layer has, once; first that of layers which see all."""
        mixers = [layer.mixer for layer in dict.fromkeys(self.layers)]
        rotated = [mixer for mixer in mixers if isinstance(mixer, Attention | LatentAttention)]
        rotated.sort(key=lambda mixer: isinstance(mixer, Attention) and mixer.window > 0)
        return tuple(dict.fromkeys(mixer.rope for mixer in rotated if mixer.rope is not None))

    @property
    def rope(self) -> RopeSettings | None:
        """The rotation of layers that see all; None where there is none, and of families that are only described."""
        return next(iter(self.ropes), None)

    @property
    def longest_model_len(self) -> int:
        """Tokens: the largest max_model_len that makes sense. Beyond `max_position_embeddings` where rope stretches."""
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
