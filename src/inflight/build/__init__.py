"""The composition root: the one place where model, memory, scheduler, loop and text meet.

Knows how an engine is put together from settings, and records the reason of every value it chose. Only the command
line and the Python API import it.
"""

from inflight.build.engine import Engine, build_engine
from inflight.build.kv_peers import PeersWanted
from inflight.build.model import BUILT_IN, has_chat_template, model_folder
from inflight.build.needs import MemoryNeeds, memory_needs
from inflight.build.prefill_engines import build_engines

__all__ = [
    "BUILT_IN",
    "Engine",
    "MemoryNeeds",
    "PeersWanted",
    "build_engine",
    "build_engines",
    "has_chat_template",
    "memory_needs",
    "model_folder",
]
