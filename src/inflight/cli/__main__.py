"""`python -m inflight.cli`: the same as the `inflight` command."""

from inflight.__main__ import main

main()
