"""The demonstration: a small server under two lanes of traffic, and sentences about what its engine does.

traffic ──HTTP──▶ server, in a process of its own ──live feed──▶ narrator ──sentences──▶ terminal
"""
