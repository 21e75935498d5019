"""Routing policies, one file each: which of the replicas gets a request."""
