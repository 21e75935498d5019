"""The MLPs of a model's layers, one file a kind, as `mixers`."""
