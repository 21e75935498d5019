"""For `scripts/sanitized`: tests get the kernels that were compiled with sanitizers, wherever they ask for kernels.

Knows where that build lies; is loaded as a plugin before the package is.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_NAME = "inflight.execution.backends._native"

(_built,) = Path(__file__).parents[1].glob("build/sanitized/_native*.so")
_spec = importlib.util.spec_from_file_location(_NAME, _built)
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_NAME] = _module  # an import of the name finds it here
_spec.loader.exec_module(_module)
