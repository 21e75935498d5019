"""Tokenizer workers: bodies are checked, rendered and tokenized in processes with limits of time and memory.

body ─▶ pool ─▶ worker: preprocessor (body, template, tokens) ─▶ Prepared | Refused ─▶ translating: Call
"""
