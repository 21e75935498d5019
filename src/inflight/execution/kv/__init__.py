"""KV memory of an engine beside its passes: blocks as bytes, to and from a folder and other engines."""
