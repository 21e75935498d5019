"""llama.cpp's library by its Python bindings, from nothing to the first token of a prompt: a program of its own.

Arguments: the GGUF file, the prompt, the number of threads. Writes the token's text, and stays until its input ends, so
that what it has used can be read meanwhile. Imports nothing of this package: it runs in the bindings' environment.
"""

from __future__ import annotations

import ctypes
import sys

from llama_cpp import llama_cpp  # type: ignore[import-not-found]  # not in this environment

_CONTEXT, _MAX_TOKENS = 4096, 1024


def main(path: str, prompt: str, threads: int) -> None:
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_threads, parameters.n_threads_batch = _CONTEXT, threads, threads
    context = llama_cpp.llama_init_from_model(model, parameters)
    if not context:
        sys.exit(f"llama.cpp cannot load {path}")
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    tokens, text = (llama_cpp.llama_token * _MAX_TOKENS)(), prompt.encode()
    count = llama_cpp.llama_tokenize(vocabulary, text, len(text), tokens, _MAX_TOKENS, True, True)
    if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, count)):
        sys.exit("llama_decode failed")
    token = llama_cpp.llama_sampler_sample(llama_cpp.llama_sampler_init_greedy(), context, -1)
    piece = ctypes.create_string_buffer(256)
    size = llama_cpp.llama_token_to_piece(vocabulary, token, piece, len(piece), 0, True)
    sys.stdout.buffer.write(piece.raw[:size] or b" ")
    sys.stdout.buffer.flush()
    sys.stdin.read()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
