"""Drafters: what guesses the tokens that a decode will bring. How they are asked says `core.speculation.drafter`."""
