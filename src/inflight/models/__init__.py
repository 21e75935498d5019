"""Models as data: one file a family turns `config.json` into a `ModelSpec`, which everything else reads.

A spec's layers are mixers and MLPs, one file a kind, which answer for themselves (`parts`); `arithmetic` and
`sequence_memory` add up. Types are msgspec's structs: making them costs a start a twentieth of dataclasses.
"""
