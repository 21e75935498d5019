"""Where a model's tensors come from: safetensors folders, and random numbers.

A source yields tensors by the names that Hugging Face gives them. It does not know which of them a model has, or how a
backend packs them.
"""
