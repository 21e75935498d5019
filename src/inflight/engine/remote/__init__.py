"""An engine asked from other processes: `messages` over ZMQ, `server` in the engine's process, `client` in each other.

Needs pyzmq, which nothing outside of this package does.
"""
