"""Measuring servers: a load client for anything that speaks OpenAI's completions or chat.

Knows HTTP and the figures; nothing of how the engine works inside.
"""
