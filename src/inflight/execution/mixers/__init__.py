"""The mixers of a model's layers, one file a kind: weights, their names in a checkpoint, the order of operations.

`load` packs a mixer's weights through a `Packer`; `forward` records its operations on a `Program`. Its sizes stand in
the file of the same name in `models.mixers`.
"""
