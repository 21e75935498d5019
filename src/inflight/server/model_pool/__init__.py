"""Several models behind one address (`--models`): `residency` decides which are in memory, `keeper` carries it out,
calls acquire them from `pool`, and `worker` is an engine's process as the first process sees it."""
