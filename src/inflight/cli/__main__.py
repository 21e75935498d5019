"""`python -m inflight.cli`: the same as the `inflight` command."""

from inflight.cli import main

main()
