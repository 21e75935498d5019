"""Runner of OpenVINO GenAI: its continuous batching pipeline, stepped. Runs in an environment that has
openvino-genai, over a model that its exporter wrote.

The hint bf16 is what makes it compute in bf16 over weights stored in half precision; the precision of its KV cache is
its own default.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from benchmarks.peers.stepping import Job, serve

_STEP_TOKENS = 2048


class OpenVINO:
    def __init__(self, job: Job):
        import numpy
        import openvino  # type: ignore[import-not-found]  # not in the environment that checks types
        import openvino_genai  # type: ignore[import-not-found]

        self._numpy, self._openvino, self._genai = numpy, openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = job.kv_gib
        scheduler.max_num_seqs = job.max_num_seqs
        scheduler.max_num_batched_tokens = _STEP_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        device = {
            "INFERENCE_NUM_THREADS": job.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16",
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(job.model, scheduler, "CPU", device)
        self._unfinished: dict[int, tuple[Any, int]] = {}  # handle, tokens still to come
        self.version = version("openvino-genai")
        self.settings = f"{_STEP_TOKENS} tokens in a step, dynamic split-fuse, its default KV precision"

    def add(self, number: int, prompt: list[int], output_tokens: int) -> None:
        wanted = self._genai.GenerationConfig()
        wanted.max_new_tokens = output_tokens
        wanted.ignore_eos = True
        wanted.do_sample = False
        ids = self._openvino.Tensor(self._numpy.array([prompt], dtype=self._numpy.int64))
        self._unfinished[number] = self._pipeline.add_request(number, ids, wanted), output_tokens

    def step(self) -> Iterable[tuple[int, int]]:
        self._pipeline.step()
        for number, (handle, left) in list(self._unfinished.items()):
            tokens = 0
            while handle.can_read():
                tokens += sum(len(output.generated_ids) for output in handle.read().values())
            if tokens == left:
                del self._unfinished[number]
            elif tokens:
                self._unfinished[number] = handle, left - tokens
            if tokens:
                yield number, tokens


if __name__ == "__main__":
    serve(OpenVINO)
