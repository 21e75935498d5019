"""Several models behind one address (`--models`): `residency` decides which are in memory, `keeper` carries it out,
calls acquire models from `pool`, and `worker` is one model's process as the pool sees it. The command line knows what
runs in that process: engines are built there."""
