"""Which replica gets a request: what the policies of `inflight.routing` bring on simulated replicas whose steps were
calibrated, and how large a cluster the simulator bears.

    python -m benchmarks.routing [--part goodput] [--step-model FILE] [--write]
    python -m benchmarks.routing --part scale [--replicas 64] [--requests 1000000] [--processes 2] [--write]

The shapes of traffic (`shapes/`) were fixed before the first run. Goodput is the highest rate at which nine of ten
requests keep their targets (DistServe, arXiv 2401.09670), found by bisection on the same requests for all policies.
"""
