"""Models as data: one file a family turns `config.json` into a `ModelSpec`, which everything else reads.

The decoder, the loader, the KV layout, the rooflines, the simulator and the planner all count with `arithmetic`,
`layer_weights` and `sequence_memory` over the same `spec`. Knows no weights, no tensors and no device.
Its types are msgspec's structs: making them costs a start a twentieth of what dataclasses would.
"""
