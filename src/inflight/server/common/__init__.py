"""Shared by all APIs: reading bodies, making prompts and engine requests of them, and folding events into answers."""
