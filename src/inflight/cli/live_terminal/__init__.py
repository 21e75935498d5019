"""The live feed in a terminal: who reads it, what is kept of it, and the screen."""
