"""Drafters: guess the tokens that a decode will bring, as `core.speculation.speculation` asks them."""
