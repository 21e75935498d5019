"""The engine's scheduler on virtual time: step models, simulated engines, replicas and routers, replay, calibration.

Engine and simulator share every line of scheduling (`config.assembly` makes both); only the device is simulated.
"""
