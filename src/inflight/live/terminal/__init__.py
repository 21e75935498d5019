"""Show the live feed of a server in a terminal: its reader, its last state, the screen, and sentences about it."""
