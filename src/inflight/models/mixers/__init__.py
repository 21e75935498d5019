"""The mixers of a model's layers, one file a kind: sizes, and the answers of `parts.Mixer` about them."""
