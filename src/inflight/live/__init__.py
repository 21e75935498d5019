"""Draw an engine's work: frames of a live engine or of a record, and the page that shows them.

    engine's loop ─ observer ─▶ ring ─┐
                      dump ───────────┴▶ live ────┐
                                                  ├▶ StepFacts, Moment ─▶ FrameMaker ─▶ Frame ─▶ page, terminal
    record file, line by line ─────────▶ recorded ┘

`distant` requests frames of engines in other processes. `checkpoints` lets a part of a long record be drawn in detail
without reading the record from its start.

Both sources are drawn by the same code: a page that replays a record, also a simulation's, shows what it would have
shown of the live engine.
"""
