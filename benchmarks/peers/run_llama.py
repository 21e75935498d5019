"""Runner of llama.cpp: its library in this process through its own Python bindings, over a GGUF file.

The library computes batches and leaves their making to who calls it; this is the loop of its server: a token of each
sequence that decodes, then prompts in their order until the batch is full. Greedy picks are numpy's argmax over its
logits, which is quicker than the library's own sampler. The cache is unified, as it is in the server by default: eight
rows took two thirds of the time that they take with caches of their own, sixteen and more about the same. A caller that
starts this names the bindings' source in PYTHONPATH and the compiled library in LLAMA_CPP_LIB_PATH.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.peers.stepping import Job, serve

_BATCH, _MICRO_BATCH = 2048, 512  # the defaults of its server
_INSTRUCTIONS = ("AMX_INT8", "AVX512_BF16", "AVX512_VNNI", "AVX512", "AVX_VNNI", "AVX2")


@dataclass(slots=True)
class _Sequence:
    """fed: the prompt's tokens that are in the cache. last: of its tokens, the one that is not."""

    number: int
    prompt: list[int]
    left: int
    fed: int = 0
    last: int = -1


class Llama:
    version: str

    def __init__(self, job: Job):
        import numpy
        from llama_cpp import __version__, llama_cpp  # type: ignore[import-not-found]  # not in this environment

        self._numpy, self._library = numpy, llama_cpp
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(job.model.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {job.model}")
        self._context = llama_cpp.llama_init_from_model(model, self._parameters(job))
        if not self._context:
            raise RuntimeError(f"llama.cpp made no context for {job.max_num_seqs} rows of {job.row_tokens} tokens")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        self._free = deque(range(job.max_num_seqs))
        self._waiting: deque[_Sequence] = deque()
        self._running: dict[int, _Sequence] = {}  # by row
        info = llama_cpp.llama_print_system_info().decode()
        used = [name for name in _INSTRUCTIONS if f"{name} = 1" in info]
        self.version = f"of llama-cpp-python {__version__}"
        self.settings = f"{_BATCH} tokens in a batch, {_MICRO_BATCH} in a micro-batch, {', '.join(used[:3])}"

    def _parameters(self, job: Job) -> object:
        parameters = self._library.llama_context_default_params()
        parameters.n_seq_max = job.max_num_seqs
        parameters.n_ctx = job.max_num_seqs * job.row_tokens
        parameters.kv_unified = True
        parameters.n_batch, parameters.n_ubatch = _BATCH, _MICRO_BATCH
        parameters.n_outputs_max, parameters.n_outputs_max_per_seq = job.max_num_seqs, 1
        parameters.n_threads = parameters.n_threads_batch = job.threads
        return parameters

    def add(self, number: int, prompt: list[int], output_tokens: int) -> None:
        self._waiting.append(_Sequence(number, prompt, output_tokens))

    def step(self) -> Iterable[tuple[int, int]]:
        while self._waiting and self._free:
            self._running[self._free.popleft()] = self._waiting.popleft()
        sampled = self._fill()
        code = self._library.llama_decode(self._context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode answered {code} to a batch of {self._batch.n_tokens} tokens")
        for index, row in sampled:
            sequence = self._running[row]
            sequence.last = self._greedy(index)
            sequence.left -= 1
            if not sequence.left:
                self._library.llama_memory_seq_rm(self._library.llama_get_memory(self._context), row, -1, -1)
                del self._running[row]
                self._free.append(row)
            yield sequence.number, 1

    def _fill(self) -> list[tuple[int, int]]:
        """The batch of this step; at which of its places a token is sampled, and for which row."""
        self._batch.n_tokens = 0
        sampled = []
        for row, sequence in self._running.items():
            if sequence.last >= 0:
                self._put(row, sequence.last, sequence.fed, True)
                sampled.append((self._batch.n_tokens - 1, row))
                sequence.fed += 1
        for row, sequence in self._running.items():
            if sequence.last >= 0:
                continue
            end = min(len(sequence.prompt), sequence.fed + _BATCH - self._batch.n_tokens)
            for position in range(sequence.fed, end):
                self._put(row, sequence.prompt[position], position, position + 1 == len(sequence.prompt))
            sequence.fed = end
            if end == len(sequence.prompt):
                sampled.append((self._batch.n_tokens - 1, row))
        return sampled

    def _put(self, row: int, token: int, position: int, logits: bool) -> None:
        batch, place = self._batch, self._batch.n_tokens
        batch.token[place] = token
        batch.pos[place] = position
        batch.n_seq_id[place] = 1
        batch.seq_id[place][0] = row
        batch.logits[place] = logits
        batch.n_tokens = place + 1

    def _greedy(self, index: int) -> int:
        logits = self._library.llama_get_logits_ith(self._context, index)
        row = self._numpy.ctypeslib.as_array(
            ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), shape=(self._vocabulary,)
        )
        return int(row.argmax())


if __name__ == "__main__":
    serve(Llama)
