"""Constrain outputs to grammars, by llguidance: sources, compiled grammars, and the masks of running outputs."""
