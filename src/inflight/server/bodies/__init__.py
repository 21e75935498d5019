"""Bodies of requests: what a client may send, field by field, and what is said about everything else."""
