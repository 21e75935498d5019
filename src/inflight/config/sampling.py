"""Sampling settings as users of the command line give them. Names are those of `SamplingParams`, defaults greedy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from inflight.config.setting import setting
from inflight.core.types.sampling import InvalidSampling, SamplingParams


def read_logit_bias(text: str) -> Any:
    """Read the JSON object of --logit-bias. Raises InvalidSampling."""
    try:
        return json.loads(text)
    except ValueError as error:
        cause = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise InvalidSampling(f"--logit-bias is not JSON ({cause}); write it like '{{\"12\": -100}}'.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """Sampling settings; `SamplingParams` checks them."""

    n: int = setting(1, "Samples of each prompt.", "Sampling")
    temperature: float = setting(0.0, "Divides the logits; 0 takes the most likely token.")
    top_k: int = setting(0, "Sample from the k most likely tokens; 0: from all.")
    top_p: float = setting(1.0, "Sample from the most likely tokens that have this probability together.")
    min_p: float = setting(0.0, "Minimum probability of a token, relative to the most likely one.")
    repetition_penalty: float = setting(1.0, "Divides the logits of tokens in prompt and answer; above 1: repeat less.")
    presence_penalty: float = setting(0.0, "Subtracted once from the logit of every token already used.")
    frequency_penalty: float = setting(0.0, "Subtracted for each time that a token was used.")
    logit_bias: Mapping[str, float] | None = setting(
        None, 'Numbers added to logits by token id, such as {"12": -100}.', metavar="JSON", text=read_logit_bias
    )
    max_tokens: int = setting(512, "Maximum tokens of an answer.")
    min_tokens: int = setting(0, "Minimum tokens of an answer.")
    stop: tuple[str, ...] = setting((), "Text that ends an answer; may be given several times.")
    stop_token_ids: tuple[int, ...] = setting((), "Token id that ends an answer; several times.")
    include_stop_str_in_output: bool = setting(False, "Keep the text of --stop in the answer.")
    ignore_eos: bool = setting(False, "Continue after the model's end-of-sequence token.")
    logprobs: int | None = setting(None, "Return log-probabilities, with this many alternatives.")
    prompt_logprobs: int | None = setting(None, "The same for the tokens of the prompt.")

    def params(self) -> SamplingParams:
        """Return the parameters of a request. Raises InvalidSampling."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return SamplingParams(**given | {"logit_bias": self.logit_bias or {}})
