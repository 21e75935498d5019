"""Read tensors of checkpoints by the names that Hugging Face gives them, or make random ones."""
