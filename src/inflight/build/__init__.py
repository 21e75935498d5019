"""The composition root: the one place where model, memory, scheduler, loop and text meet.

Only the command line and the Python API import it. Each part is imported when it is first used: together they take as
long as loading a small model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inflight.build.engine import Engine, build_engine
    from inflight.build.kv_transfer import KVPeerSettings
    from inflight.build.model import BUILT_IN, has_chat_template, model_folder, text_files
    from inflight.build.needs import MemoryNeeds, memory_needs
    from inflight.build.prefill_engines import build_engines

__all__ = [
    "BUILT_IN",
    "Engine",
    "KVPeerSettings",
    "MemoryNeeds",
    "build_engine",
    "build_engines",
    "has_chat_template",
    "memory_needs",
    "model_folder",
    "text_files",
]

_MODULES = {
    "engine": ("Engine", "build_engine"),
    "kv_transfer": ("KVPeerSettings",),
    "model": ("BUILT_IN", "has_chat_template", "model_folder", "text_files"),
    "needs": ("MemoryNeeds", "memory_needs"),
    "prefill_engines": ("build_engines",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
