"""The engine: turns plans into tokens. Loop, clock, null executor, recorder, and its clients, local and remote.

Knows core and nothing of models, tensors, text or HTTP.
"""
