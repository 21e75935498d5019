"""A folder as a tier of KV blocks and checkpoints."""
