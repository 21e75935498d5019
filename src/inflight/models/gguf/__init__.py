"""GGUF files as models: the format, and its metadata as the config.json that belongs to the model.

`execution.checkpoints.gguf` decodes their tensors, `text.gguf` reads their vocabularies.
"""
