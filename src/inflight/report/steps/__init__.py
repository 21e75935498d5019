"""What an engine did, step by step, from its record: tokens, rows, KV blocks and queues over time.

Each module takes the record's lines one by one and keeps what grows with changes, not with steps.
"""
