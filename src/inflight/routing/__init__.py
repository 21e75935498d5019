"""What a replica is worth to a request: the prefix it holds, the work queued there in seconds, session and tenant.

Used unchanged by simulated clusters and by gateways before real replicas. Knows what stands before engines and can see:
requests, what was sent to whom, what came back of it, what an engine says of its steps; no engines and no transports.
"""
