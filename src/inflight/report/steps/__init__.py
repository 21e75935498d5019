"""An engine's steps from its record: tokens, rows, KV blocks and queues over time, read line by line."""
