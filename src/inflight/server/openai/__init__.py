"""OpenAI's APIs: a file each, with its schema, its translation into engine requests, and its answers."""
