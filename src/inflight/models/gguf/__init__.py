"""GGUF files as models: the format, and its metadata as the config.json that belongs to the model.

Knows files and names. What their tensors' bytes mean is known to `execution.checkpoints.gguf`, their vocabularies to
`text.gguf`.
"""
