"""An engine with clients in other processes: `server` in the engine's process, `client` in the others, over ZMQ."""
