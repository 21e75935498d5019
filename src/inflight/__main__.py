"""The `inflight` command and `python -m inflight`: the command line, and Ctrl-C while it is imported.

Imports nothing else at the top, so that Ctrl-C has an answer from the first import on.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit with 130 where Ctrl-C comes before it is imported."""
    try:
        from inflight.cli import main as run
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
