"""Batch jobs: files of requests that are answered in the background, and survive the death of the process.

Knows OpenAI's Files and Batches API, a data directory and an `Answerer` that answers one line; not the engine.
"""
