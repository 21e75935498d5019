"""The live page over HTTP: the feed of frames, who may see what of it, and the page's files."""
