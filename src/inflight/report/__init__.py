"""Pictures and words about runs: from records and observations to a page that opens anywhere.

Knows what was written down; no engine, no server, no network.
"""
