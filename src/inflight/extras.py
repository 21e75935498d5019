"""The command that installs an extra of this package, for error messages.

It names the interpreter that runs, whose environment has this package already, so that pip adds the extra alone. A bare
`pip` may belong to another environment. The package's name on an index is not `inflight`, which is a different project.
"""

from __future__ import annotations

import shlex
import sys

DISTRIBUTION = "inflight-llm"


def pip_install(extra: str) -> str:
    """Return a command such as `/…/bin/python -m pip install 'inflight-llm[gpu]'`."""
    return f"{shlex.quote(sys.executable or 'python')} -m pip install '{DISTRIBUTION}[{extra}]'"
