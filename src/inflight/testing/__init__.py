"""Executors without a model, for tests, benchmarks and experiments with strategies and policies.

`NullExecutor` computes nothing and yet shows every mistake in a plan; `ScriptedExecutor` gives the answers of a script;
`PacedExecutor` makes steps last as long as a larger model's. `EagerSpeculation` computes every draft. The simulator's
executor is suspended as they are (`suspension`).
"""

from inflight.testing.eager_speculation import EagerSpeculation
from inflight.testing.null import NullExecutor
from inflight.testing.paced import Pace, PacedExecutor
from inflight.testing.scripted import Script, ScriptedExecutor

__all__ = ["EagerSpeculation", "NullExecutor", "Pace", "PacedExecutor", "Script", "ScriptedExecutor"]
