"""The parts of a decoder's layers, a file a kind: weights, their names in a checkpoint, the order of its operations.

A part is made twice. `load` packs its weights through a `Packer`; `bind` names the activations that it needs in a
`Workspace` and gives the function that runs it. What a part is made of stands in its spec (`models.spec`); what an
operation does, the backend knows.
"""
