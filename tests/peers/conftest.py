"""The programs under benchmarks/ are no part of the package: they are imported from the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
