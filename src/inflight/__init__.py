"""inflight: an LLM inference server whose subject is batching."""
