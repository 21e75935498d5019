"""The engine: the loop that turns plans into tokens, observers and the recorder, and clients, local and remote.

It imports core and records, and no models, tensors, text or HTTP.
"""
