"""The engine: turns plans into tokens. Loop, clock, null executor, recorder, and the bridge to asyncio.

Knows core and nothing of models, tensors, text or HTTP.
"""
