"""Tokenizer workers: bodies are read, checked, rendered and tokenized in processes with limits of time and memory.

A body is parsed, a chat template (a program that came with a model) is run over it, and its text is cut into tokens.
Each may take long or much memory if a client wants it to, and none lets the event loop run meanwhile. So all of it is
one pure function, `preprocessor`, from bytes to a message of `wire`; short completions run it in place, everything
else in processes of their own with limits of time and memory, which `pool` asks and `worker` is.

    body ─▶ pool ─▶ worker: preprocessor (bodies, text) ─▶ Prepared | Refused ─▶ translating: Call
"""
