"""What an engine does, drawn while it does it: frames, made of a live engine or of a record, and the page that shows
them.

    engine's loop ─ observer ─▶ ring ─┐
                      dump ───────────┴▶ live ────┐
                                                  ├▶ StepFacts, Moment ─▶ FrameMaker ─▶ Frame ─▶ page, terminal
    record file, line by line ─────────▶ recorded ┘

Frames of engines in other processes are asked for (`distant`), and told by the same kinds. A stretch of a long record
is drawn closely from where the feed was a little before (`checkpoints`).

One drawing: a page that replays a record, or a simulation's, shows what it would have shown of the engine at work.
"""
