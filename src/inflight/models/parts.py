"""The parts of a layer: the questions that a mixer and an MLP of any kind answer about themselves.

A kind is a frozen struct of sizes, one file in `mixers` or `mlps`, that overrides the answers in which it differs.
Counting weights, laying out memory, cutting a model for several devices and reading a checkpoint ask these methods and
need no list of kinds. The file of the same name in `execution` has the kind's packed weights and its forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Struct

from inflight.models.errors import ModelError
from inflight.models.rope import RopeSettings

if TYPE_CHECKING:
    from typing import Self

    from inflight.models.spec import LayerSpec, ModelSpec

MAX_KERNEL = 16  # tokens that a short convolution sees
Matrix = tuple[int, int]  # outputs and inputs


class Weights(Struct, frozen=True):
    """Weights of a part.

    Attributes:
        matrices: (outputs, inputs) of each.
        others: Elements of norms, biases, depthwise convolutions and the like.
    """

    matrices: tuple[Matrix, ...] = ()
    others: int = 0

    @property
    def elements(self) -> int:
        """Count the elements of the matrices."""
        return sum(outputs * inputs for outputs, inputs in self.matrices)

    @property
    def outputs(self) -> int:
        return sum(outputs for outputs, _ in self.matrices)


class TokenKV(Struct, frozen=True):
    """Keys and values of one token in one layer: for each head a key and a value of these widths. value_dim 0: the
    values are the first numbers of the keys, and are not stored again."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        return self.heads * (self.key_dim + self.value_dim)

    @property
    def scales(self) -> int:
        """Count the scales beside quantized ones: of each head's keys, and of its values."""
        return self.heads * (2 if self.value_dim else 1)


class LayerState(Struct, frozen=True):
    """The state of a recurrent layer for a sequence, however long: the last `inputs` inputs of its convolution over
    `channels` channels, in `act`, and for each of `heads` heads a float32 matrix [key_dim, value_dim]. Before any token
    all of it is 0."""

    inputs: int
    channels: int
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0

    @property
    def convolved(self) -> int:
        """Count the inputs that the convolution keeps."""
        return self.inputs * self.channels

    @property
    def elements(self) -> int:
        """Count the elements of the matrices."""
        return self.heads * self.key_dim * self.value_dim


class Slices(Struct, frozen=True):
    """How a tensor is cut for several devices: into so many equal pieces along its outputs or its inputs. Fewer pieces
    than devices: several devices hold the same one."""

    along: Literal["outputs", "inputs"]
    pieces: int


class StackedByHead(Struct, frozen=True):
    """A tensor of several matrices' rows, head after head: `widths` rows of each matrix for each of `heads` heads.
    chosen: which of the matrices are meant."""

    tensor: str
    heads: int
    widths: tuple[int, ...]
    chosen: tuple[int, ...]


class RotatedRows(Struct, frozen=True):
    """Rows of heads of `width` numbers, of which those behind the first `before` are rotated in pairs."""

    before: int
    width: int


class Part(Struct, frozen=True):
    """A mixer or an MLP. `module` is what the names of its tensors begin with, behind `model.layers.N.`; the methods
    that take a name take it without that, and without `.weight` or `.bias`."""

    module: ClassVar[str]

    # -- weights -------------------------------------------------------------------------------------------------------
    def weights(self, hidden: int) -> Weights:
        """Return the weights that every token passes, in a model `hidden` numbers wide."""
        raise NotImplementedError

    def adapter_matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Return the matrices that an adapter may add to, one by one as a checkpoint has them."""
        return self.weights(hidden).matrices

    @property
    def plain_outputs(self) -> int:
        """Count the outputs of matrices that are never quantized."""
        return 0

    # -- what the engine does not compute ------------------------------------------------------------------------------
    def refuse(self, model: ModelSpec, layer: LayerSpec) -> None:
        """Raise ModelError (`not_computed`) for the first thing of the part that the engine does not compute in this
        layer of this model."""

    # -- on several devices --------------------------------------------------------------------------------------------
    @property
    def whole(self) -> str | None:
        """Describe a part that each of several devices computes alone; None: they share it, and each has the sum of
        what all of them compute."""
        return f"layers of {type(self).__name__}"

    def uneven(self, devices: int) -> str | None:
        """Name the sizes that so many devices cannot share evenly; None where they can."""
        return None

    def on_one_of(self, devices: int) -> Self:
        """Return the part as one of so many devices that share it computes it."""
        raise NotImplementedError

    def slices(self, tensor: str, devices: int) -> Slices | None:
        """Return how a tensor is cut; None: each device holds all of it."""
        return None

    # -- in a checkpoint -----------------------------------------------------------------------------------------------
    def rows(self, matrix: str) -> int:
        """Count the outputs of a matrix that a family's checkpoints may stack with others."""
        raise NotImplementedError(f"{type(self).__name__} has no stacked {matrix}")

    def stacked_by_head(self, matrix: str) -> StackedByHead | None:
        """Return the tensor in which some checkpoints stack the matrix with others head by head; None: in none."""
        return None

    def rotated_rows(self, tensor: str) -> RotatedRows | None:
        """Return the heads of a tensor whose rows are rotated, in pairs that some checkpoints interleave."""
        return None


class Mixer(Part, frozen=True):
    """The part that lets a token see others."""

    # -- how the tokens before it are seen -----------------------------------------------------------------------------
    @property
    def causal(self) -> bool:
        """Whether a token sees those before it alone."""
        return True

    @property
    def window(self) -> int:
        """Tokens that a query looks back over, itself included; 0: all."""
        return 0

    @property
    def chunked(self) -> bool:
        """Whether the window restarts at its multiples instead of sliding."""
        return False

    @property
    def visible_tokens(self) -> int:
        """Count the tokens that one sees at most; 0: all."""
        return self.window if self.causal or not self.window else 2 * self.window + 1

    @property
    def rope(self) -> RopeSettings | None:
        """The rotation of queries and keys."""
        return None

    def with_rope(self, rope_of: Callable[[Any], RopeSettings | None]) -> Self:
        """Return the mixer with the rotation of its family, where the family's layers leave it open."""
        return self

    # -- memory of a sequence ------------------------------------------------------------------------------------------
    @property
    def reads(self) -> TokenKV | None:
        """Keys and values that the layer reads of each token it sees."""
        return None

    @property
    def kv_layer(self) -> int | None:
        """The earlier layer whose keys and values it reads; None: its own."""
        return None

    @property
    def writes(self) -> TokenKV | None:
        """Keys and values that the layer adds for each token."""
        return self.reads if self.kv_layer is None else None

    @property
    def cached(self) -> TokenKV | None:
        """Keys and values of a token that later steps read."""
        return self.writes if self.causal else None

    def recurrent_state(self, hidden: int) -> LayerState | None:
        """Return the state of fixed size that the layer keeps of a sequence."""
        return None

    # -- counts --------------------------------------------------------------------------------------------------------
    def pair_flops(self, compressed: bool = False) -> int:
        """Count the operations of one query that sees one position, over all heads. compressed: of latent attention,
        over the cached vectors as they lie (`mixers.mla`)."""
        return 0

    @property
    def state_flops(self) -> int:
        """Count the operations on the state for one token: it is read against the key, written, and read by the query,
        a multiply-add for each element each time."""
        state = self.recurrent_state(0)
        return 0 if state is None else 6 * state.elements

    @property
    def shared_elements(self) -> int:
        """Count the weights that all layers of this kind share."""
        return 0

    def value_elements(self, hidden: int) -> int:
        """Count the elements of a projection to values alone, which stays in int8 beside int4 matrices."""
        return 0

    @property
    def transposed(self) -> tuple[int, int, int] | None:
        """Return count, outputs and inputs of matrices that are held with outputs and inputs exchanged."""
        return None

    # -- on several devices --------------------------------------------------------------------------------------------
    @property
    def shared_heads(self) -> tuple[str, int] | None:
        """Name and count the heads that an ideal engine would share among devices, for plans and simulation."""
        return None


class Mlp(Part, frozen=True):
    """The part that computes each token by itself. experts, top_k: of a mixture, of which a token passes `top_k`."""

    module: ClassVar[str] = "mlp"

    @property
    def experts(self) -> int:
        return 0

    @property
    def top_k(self) -> int:
        return 0

    @property
    def passed_width(self) -> int:
        """Count the inner numbers that are computed for one token."""
        raise NotImplementedError

    def expert_weights(self, hidden: int) -> Weights:
        return Weights()

    def touched_experts(self, tokens: float) -> float:
        """Count the distinct experts that `tokens` tokens use, E(1 - (1 - k/E)^T): tokens choose independently."""
        return self.experts * (1 - (1 - self.top_k / self.experts) ** tokens) if self.experts else 0


def not_computed(model: ModelSpec, what: str) -> ModelError:
    """Return the refusal of a model that has `what`."""
    return ModelError(
        f"the family {model.family} has {what}, which is described, but not computed by this decoder; take a model of "
        "another family."
    )


def refuse_long_kernel(model: ModelSpec, kernel: int) -> None:
    """Raise ModelError for a convolution over more tokens than the kernels read."""
    if kernel > MAX_KERNEL:
        raise not_computed(model, f"convolutions of over {MAX_KERNEL} tokens")
