"""A forward pass: prepared once, run, finished, and waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from inflight.core.types.plan import Pooled, Sampled, Scored
from inflight.execution.backends.protocol.handles import Activation
from inflight.execution.backends.protocol.number_formats import Array


class PassResult(NamedTuple):
    """Results of one forward pass, and when it was done (seconds of `time.perf_counter`)."""

    sampled: Sequence[Sampled]
    scored: Sequence[Scored]
    pooled: Sequence[Pooled]
    finished: float
    states: Array | None = None  # float32[S, E], of the hidden states that were read


class PendingPass(Protocol):
    def result(self) -> PassResult:
        """Wait for the device. Raises what broke the pass."""


class Pass(Protocol):
    """Sampling, scoring and pooling of a pass, whatever computed its logits and its last hidden states."""

    num_tokens: int
    draws_all: bool  # whether a draw follows each token, so that their logits may be computed with the layers

    def sample(self, logits: Activation, places: Sequence[int], allowed: Sequence[Array | None] | None = None) -> None:
        """Draws what follows the tokens at `places`, which rise, each as if all tokens before it were the slot's,
        drafts too; logits are the rows of float32[S, V], which may be overwritten. Of a chunk that has been drawn for
        whole, the slot keeps what was drawn up to the first draft that was wrong. allowed: of each draw what may come
        of it, beside what its slot says: bits as `SamplingBatch.allowed` has them."""

    def score(self, logits: Activation, places: Sequence[int]) -> None:
        """Log-probabilities of the known tokens that follow those at `places`, which rise; logits as for `sample`."""

    def pool(self, vectors: Activation, places: Sequence[int]) -> None:
        """Pool the texts whose last tokens are at `places`; vectors are rows of act[S, N] or float32[S, N]. Pooling
        settings are the slots'."""

    def read(self, hidden: Activation, places: Sequence[int]) -> None:
        """Return the rows of hidden float32[T, E] at `places` with the result, as `states`. Called once at most."""

    def finish(self) -> PendingPass: ...


class ForwardPass(Pass, Protocol):
    """A pass that runs operations over its tokens. They may still be in flight when a call returns: an activation's
    contents are not defined before `finish`."""

    def run(self, program: Any, places: Sequence[int] = (), texts: Sequence[range] = ()) -> None:
        """Run a program that the backend has compiled. places: of the tokens that `gather` reads. texts: ranges of
        tokens that `mean` reads."""
