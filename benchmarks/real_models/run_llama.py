"""Runner of llama.cpp over the same file and token ids. Reads a job from standard input (see `engines`).

As in `benchmarks.peers.run_llama`, the caller names the bindings' source in PYTHONPATH and the compiled library in
LLAMA_CPP_LIB_PATH.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.real_models.answers import Collected, Questions, slabs

_BATCH = 256  # tokens whose logits are held at a time


def main() -> None:
    from llama_cpp import __version__, llama_cpp  # type: ignore[import-not-found]  # not in this environment

    job = json.load(sys.stdin)
    questions = Questions.load(Path(job["questions"]))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(job["model"].encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp cannot load {job['model']}")
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = max(map(len, questions.texts)) + 1
    parameters.n_batch = parameters.n_ubatch = _BATCH
    parameters.n_threads = parameters.n_threads_batch = len(os.sched_getaffinity(0))
    context = llama_cpp.llama_init_from_model(model, parameters)
    if not context:
        raise SystemExit(f"llama.cpp made no context of {parameters.n_ctx} tokens")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    collected = Collected(questions)
    for text in questions.texts:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        for part in slabs(text[:-1], _BATCH):
            collected.take(_logits(llama_cpp, context, text, part, vocabulary))
    collected.answers(f"of llama-cpp-python {__version__}").save(Path(job["answers"]))


def _logits(library: Any, context: Any, text: Any, part: range, vocabulary: int) -> Any:
    """Compute some tokens of a text, and return the logits behind each."""
    import numpy

    batch = library.llama_batch_init(_BATCH, 0, 1)
    batch.n_tokens = len(part)
    for place, position in enumerate(part):
        batch.token[place], batch.pos[place] = int(text[position]), position
        batch.n_seq_id[place], batch.logits[place] = 1, True
        batch.seq_id[place][0] = 0
    code = library.llama_decode(context, batch)
    library.llama_batch_free(batch)
    if code:
        raise SystemExit(f"llama_decode answered {code} to {len(part)} tokens")
    logits = ctypes.cast(library.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
    return numpy.ctypeslib.as_array(logits, shape=(len(part), vocabulary))


if __name__ == "__main__":
    main()
