"""Runner of inflight: a model as it is served, asked through `LLM`. Reads a job from standard input (see `engines`).

The log-probabilities that a request gets are of 20 tokens at most; the tap reads the logits from which they are
computed, and the request's own log-probabilities must be those that the tap finds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_models.answers import Collected, Questions
from inflight import LLM, SamplingParams


def collect(llm: LLM, questions: Questions) -> Collected:
    """Return a model's answers. Its prefix cache must be off, since cached positions have no logits."""
    backend: Any = llm._engine.executor._backend  # type: ignore[attr-defined]  # of the runner, in this process
    collected, score = Collected(questions), backend.score

    def tapped(logits: np.ndarray, *arguments: Any) -> Any:
        collected.take(logits)
        return score(logits, *arguments)

    found: list[float] = []
    backend.score = tapped
    try:
        for text in questions.texts:
            (output,) = llm.generate([text.tolist()], SamplingParams(max_tokens=0, prompt_logprobs=0))
            found += [entry.logprob for entry in output.prompt_token_logprobs or ()]
    finally:
        del backend.score
    np.testing.assert_allclose(found, collected.answers().of_next, atol=1e-3)
    return collected


def main() -> None:
    job = json.load(sys.stdin)
    questions = Questions.load(Path(job["questions"]))
    longest = max(map(len, questions.texts))
    llm = LLM(job["model"], enable_prefix_caching=False, max_num_seqs=1, max_model_len=longest + 1, **job["settings"])
    about = ", ".join(str(llm.settings[name].value) for name in ("dtype", "quantization"))
    collect(llm, questions).answers(about).save(Path(job["answers"]))


if __name__ == "__main__":
    main()
