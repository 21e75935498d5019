"""Heads: small networks that were trained to draft from a model's own hidden states.

`head` is one head's weights, `mtp` and `eagle3` read them from the two layouts in which they are published
(`head_tensors` answers their names), `head_decoder` computes passes of it, `recent_hidden` keeps what of the model's
hidden states it has not read yet, and `head_drafter` drafts with it inside of a step.
"""
