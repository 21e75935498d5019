"""Runner of vLLM's CPU build, asked through its `LLM`. Reads a job from standard input (see `engines`).

A request gets the log-probabilities that vLLM finds likeliest, and others are asked for here; the tap reads the logits
from which they are computed, and the request's own log-probabilities must be those that the tap finds. As in
`benchmarks.peers.run_vllm`, the caller sets LD_PRELOAD.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.real_models.answers import Collected, Questions

_KV_GIB = 1


def main() -> None:
    os.dup2(2, 1)  # the engine prints there
    job = json.load(sys.stdin)
    questions = Questions.load(Path(job["questions"]))
    longest = max(map(len, questions.texts))
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE=str(_KV_GIB),
        VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, sorted(os.sched_getaffinity(0)))),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="WARNING",
        HF_HUB_OFFLINE="1",
    )
    from vllm import LLM  # type: ignore[import-not-found]  # not in this environment

    llm = LLM(
        model=job["model"],
        dtype="bfloat16",
        max_model_len=longest + 1,
        max_num_seqs=1,
        max_num_batched_tokens=longest + 1,
        enable_prefix_caching=False,
    )
    collect(llm, questions).answers(f"vllm-cpu {version('vllm-cpu')}").save(Path(job["answers"]))


def collect(llm: Any, questions: Questions) -> Collected:
    """Ask for each text, and take the logits behind each of its tokens but the last."""
    import numpy
    from vllm import SamplingParams, TokensPrompt

    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    collected, compute = Collected(questions), runner.model.compute_logits
    seen: list[Any] = []

    def tapped(hidden: Any, *arguments: Any, **named: Any) -> Any:
        logits = compute(hidden, *arguments, **named)
        seen.append(logits.float().numpy(force=True))
        return logits

    wanted = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    found = []
    runner.model.compute_logits = tapped
    for text in questions.texts:
        seen.clear()
        (output,) = llm.generate(TokensPrompt(prompt_token_ids=text.tolist()), wanted, use_tqdm=False)
        (rows,) = [logits for logits in seen if len(logits) == len(text) - 1]
        collected.take(rows)
        entries = zip(output.prompt_logprobs[1:], text[1:].tolist(), strict=True)
        found += [entry[token].logprob for entry, token in entries]
    numpy.testing.assert_allclose(found, collected.answers().of_next, atol=1e-2)
    return collected


if __name__ == "__main__":
    main()
