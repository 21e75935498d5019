"""Show the live feed of a server in a terminal: the reader of the feed, its last state, and the screen."""
