"""Read tensors of GGUF files: their names, and their blocks as numbers or as matrices that a backend packs."""
