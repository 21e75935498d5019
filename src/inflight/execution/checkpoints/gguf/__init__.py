"""Tensors of GGUF files: their names, their blocks as numbers, and their blocks as matrices that a backend packs."""
