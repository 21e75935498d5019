"""Programs that measure. Run one as `python -m benchmarks.NAME` in the environment that `./check` makes.

Each prints its figures, and with --write rewrites its own section of docs/results.md, and only that.
"""
