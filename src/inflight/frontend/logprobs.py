"""Log-probabilities as JSON can hold them."""

from __future__ import annotations

LEAST = -9999.0  # JSON has no infinity; what OpenAI writes for "as good as impossible"


def finite(logprob: float) -> float:
    """The same, or LEAST for what is less, or no number at all."""
    return logprob if logprob > LEAST else LEAST
