"""Which fields a client's types have: run by the client's own interpreter, with types named as `module:Type`.

Says JSON: of each type the names of its fields, in order.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import get_type_hints


def fields(name: str) -> list[str]:
    module, _, kind = name.partition(":")
    return sorted(get_type_hints(getattr(importlib.import_module(module), kind), include_extras=True))


if __name__ == "__main__":
    print(json.dumps({name: fields(name) for name in sys.argv[1:]}))
