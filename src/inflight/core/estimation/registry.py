"""The predictors of output lengths, by their names."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from inflight.core.estimation.output_length import Oracle, Predictor, Quantiles
from inflight.core.estimation.prompt_tokens import PromptTokens


class PredictorEntry(Struct, frozen=True, kw_only=True):
    """A predictor by its name.

    Attributes:
        name: As `--predictor` takes it.
        reason: A phrase that says what it does, for the start's report.
        make: Makes it.
        reads_states: Whether the executor's probe of hidden states predicts, too.
    """

    name: str
    reason: str
    make: Callable[[], Predictor]
    reads_states: bool = False


QUANTILES = PredictorEntry(name="quantiles", reason="of the output lengths seen so far", make=Quantiles)
PROMPT = PredictorEntry(
    name="prompt", reason="of the prompts' tokens, once enough outputs have ended", make=PromptTokens
)
PROBE = PredictorEntry(
    name="probe",
    reason="of the prompts' tokens and the model's hidden states, once enough outputs have ended",
    make=PromptTokens,
    reads_states=True,
)
ORACLE = PredictorEntry(name="oracle", reason="the forced lengths, which no client knows in production", make=Oracle)
PREDICTORS = {entry.name: entry for entry in (QUANTILES, PROMPT, PROBE, ORACLE)}
