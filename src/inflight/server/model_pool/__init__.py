"""Several models behind one address (`--models`): which are in memory, and the calls that wait for one."""
