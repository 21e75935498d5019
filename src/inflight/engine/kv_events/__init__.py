"""KV events: what of the prefix cache a replica holds, told to routers on vLLM's wire as it changes.

`observer` gathers a step's changes, `publisher` has a thread that makes events of them (`told_blocks`),
encodes them (`wire`), sends them, and answers those who have missed some (`replay`).
"""
