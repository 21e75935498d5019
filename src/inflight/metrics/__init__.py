"""The definitions of every figure that inflight reports. Standard library only; anyone may import them."""
