"""Parts of a model beside its mixers and MLPs: embedding, norms, pooler, per-layer inputs.

`load` packs a part's weights through a `Packer`; `forward` records its operations on a `Program`.
"""
