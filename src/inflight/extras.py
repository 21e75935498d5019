"""How what an extra brings is installed, for sentences.

Knows the interpreter that runs: its environment has this package, which pip therefore leaves as it is. A bare `pip` may
be another environment's, and would fetch what bears this name on PyPI, which is somebody else's.
"""

from __future__ import annotations

import shlex
import sys


def pip_install(extra: str) -> str:
    """`/…/bin/python -m pip install 'inflight[gpu]'`."""
    return f"{shlex.quote(sys.executable or 'python')} -m pip install 'inflight[{extra}]'"
