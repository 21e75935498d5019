"""Measure servers: a load client for OpenAI's completions, chat and embeddings."""
