"""Workloads: arrivals, lengths, shared prefixes, classes of traffic, trace files, and drivers for engines."""
