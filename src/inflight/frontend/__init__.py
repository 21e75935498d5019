"""Between people's words and the engine's: prompts become requests, events become outputs.

What the Python API, the command line and the server share. Knows core's types and text; not how the engine runs.
"""
