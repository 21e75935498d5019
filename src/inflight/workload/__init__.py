"""What is asked of an engine: arrivals, lengths, shared prefixes, classes of traffic, trace files.

Knows when requests of which size come, and what their prompts share; not to whom they are sent.
"""
