"""Several models behind one address (`--models`): `residency` says which are in memory, `pool` carries it out and lends
models to calls, `worker` is one model's process as the pool sees it. What runs in that process, the command line knows:
it is where engines are built."""
