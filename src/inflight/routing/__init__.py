"""Routing between replicas by cached prefixes, queued work in seconds, sessions and tenants.

Simulated clusters and gateways before real replicas use it unchanged; it knows requests and what replicas report.
"""
