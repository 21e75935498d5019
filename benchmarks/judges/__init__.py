"""Load generators of others as judges of our measurements: their figures of a run beside ours, of the same requests.

`python -m benchmarks.judges NAME` runs one (`--list`). Each judge is one file: its environment, its command and its
result. A relay between judge and server records when each byte passed (`wire`), from which our figures are made.

Other judges look at answers: documents and cases of others (`conformance`), tool calls (`bfcl`), scores (`lm_eval`).
"""
