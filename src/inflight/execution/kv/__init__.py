"""KV memory of an engine beyond its passes: blocks as bytes, and their transfer between engines."""
