"""Convert log-probabilities to numbers that JSON can hold."""

from __future__ import annotations

MIN_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this number for a token that is as good as impossible


def finite(logprob: float) -> float:
    """Return the log-probability, or MIN_LOGPROB if it is lower or NaN."""
    return logprob if logprob > MIN_LOGPROB else MIN_LOGPROB
