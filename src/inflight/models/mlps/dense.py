"""The MLP that every token passes: its sizes and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.parts import Matrix, Mlp, Slices, Weights

if TYPE_CHECKING:
    from inflight.models.spec import LayerSpec, ModelSpec

# What config.json calls the activation functions of `execution`.
ACTIVATIONS: dict[str, Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "relu": "relu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
    "xielu": "xielu",
}
_OF_PAIRS = ("silu", "gelu", "gelu_tanh")


class Dense(Mlp, frozen=True, kw_only=True):
    """One MLP for every token.

    Attributes:
        gated: It has three matrices, act(gate) · up; else two.
    """

    width: int
    activation: str
    gated: bool = True
    bias: bool = False

    def weights(self, hidden: int) -> Weights:
        ups = 2 if self.gated else 1
        others = (ups * self.width + hidden if self.bias else 0) + (2 if self.activation == "xielu" else 0)
        return Weights(((ups * self.width, hidden), (hidden, self.width)), others)

    def adapter_matrices(self, hidden: int) -> tuple[Matrix, ...]:
        return (*((self.width, hidden),) * (2 if self.gated else 1), (hidden, self.width))

    @property
    def passed_width(self) -> int:
        return self.width

    def refuse(self, model: ModelSpec, layer: LayerSpec) -> None:
        found = ACTIVATIONS.get(self.activation)
        if found is None or (self.gated and found not in _OF_PAIRS):
            raise activation_error(self.activation)
        if self.bias and self.gated:
            raise ModelError(
                "mlp_bias is true, but the gated MLP of this decoder has no biases; take another checkpoint."
            )

    @property
    def whole(self) -> None:
        return None

    def uneven(self, devices: int) -> str | None:
        return f"an MLP of width {self.width:,}" if self.width % devices else None

    def on_one_of(self, devices: int) -> Dense:
        return replace(self, width=self.width // devices)

    def slices(self, tensor: str, devices: int) -> Slices | None:
        return slices_by_width(tensor, devices)

    def rows(self, matrix: str) -> int:
        return self.width


def slices_by_width(tensor: str, devices: int) -> Slices | None:
    """Cut the matrices of an MLP, or of each expert, along its inner numbers."""
    matrix = tensor.rpartition(".")[2]
    if matrix in ("gate_proj", "up_proj"):
        return Slices("outputs", devices)
    return Slices("inputs", devices) if matrix == "down_proj" else None


def activation_error(name: str) -> ModelError:
    """Return the refusal of an activation function."""
    return ModelError(
        f"hidden_act {shown(name)} is not supported; the gated MLP of this decoder uses 'silu', 'gelu' or "
        "'gelu_pytorch_tanh'."
    )
