"""The same scheduler on virtual time: step models, simulated engines, replicas and routers, replay, calibration.

Shares every line of scheduling with the engine (`config.assembly` makes both); what is simulated is the device alone.
"""
