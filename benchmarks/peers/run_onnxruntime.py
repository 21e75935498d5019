"""Runner of ONNX Runtime GenAI: its generator over one batch after another. Runs in an environment that has
onnxruntime-genai, over a model that its builder wrote.

On CPUs the engine has no continuous batching: those who wait are taken together as one batch of equal lengths, shorter
prompts padded on the left, and no request joins it until its longest answer has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers.stepping import Job, serve


class ONNXRuntime:
    def __init__(self, job: Job):
        import numpy
        import onnxruntime_genai  # type: ignore[import-not-found]  # not in the environment that checks types

        self._numpy, self._genai = numpy, onnxruntime_genai
        config = onnxruntime_genai.Config(job.model)
        threads = {"session_options": {"intra_op_num_threads": job.threads}}
        config.overlay(json.dumps({"model": {"decoder": threads}}))
        self._model = onnxruntime_genai.Model(config)
        read = json.loads((Path(job.model) / "genai_config.json").read_text(encoding="utf-8"))
        self._pad = read["model"]["pad_token_id"]
        self._most = job.max_num_seqs
        self._waiting: list[tuple[int, list[int], int]] = []
        self._batch: dict[int, int] = {}  # request, tokens still to come
        self._generator: Any = None
        self.version = version("onnxruntime-genai")
        self.settings = "batches that no request joins, its default KV precision"

    def add(self, number: int, prompt: list[int], output_tokens: int) -> None:
        self._waiting.append((number, prompt, output_tokens))

    def step(self) -> Iterable[tuple[int, int]]:
        if self._generator is None:
            self._begin()
        self._generator.generate_next_token()
        for number in list(self._batch):
            yield number, 1
            self._batch[number] -= 1
            if not self._batch[number]:
                del self._batch[number]
        if not self._batch:
            self._generator = None

    def _begin(self) -> None:
        taken, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        longest = max(len(prompt) for _, prompt, _ in taken)
        outputs = max(tokens for _, _, tokens in taken)
        ids = self._numpy.full((len(taken), longest), self._pad, dtype=self._numpy.int32)
        for row, (_, prompt, _) in enumerate(taken):
            ids[row, longest - len(prompt) :] = prompt
        parameters = self._genai.GeneratorParams(self._model)
        length = longest + outputs
        parameters.set_search_options(max_length=length, min_length=length, batch_size=len(taken), do_sample=False)
        self._generator = self._genai.Generator(self._model, parameters)
        self._generator.append_tokens(ids)
        self._batch = {number: tokens for number, _, tokens in taken}


if __name__ == "__main__":
    serve(ONNXRuntime)
