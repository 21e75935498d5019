"""The HTTP server: OpenAI's endpoints over one engine, batch jobs, metrics.

Knows HTTP, tenants, JSON shapes and the life of a process; asks the engine through its bridge (requests in, events
out), and never looks into scheduling or execution.
"""
