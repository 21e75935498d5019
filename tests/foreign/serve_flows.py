"""Runs inside a client's environment: calls the functions of a file of flows, one after another, as they are asked for.

`python serve_flows.py FLOWS.py`: a line of standard input is `{"flow", "arguments"}`; its answer is one line,
`{"result"}` or `{"error": {"types", "message", "status", "code", "detail"}}`. Uses the standard library alone, because
it runs beside whatever the client brings. What a client prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    result = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    flows = _load(sys.argv[1])
    with asyncio.Runner() as loop:  # one for all flows, because some clients keep their connections
        for line in sys.stdin:
            asked = json.loads(line)
            answer = _run(loop, getattr(flows, asked["flow"]), asked["arguments"])
            result.write(json.dumps(answer, default=_plain) + "\n")
            result.flush()


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("flows", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where classes look for the names in their annotations
    spec.loader.exec_module(module)
    return module


def _run(loop: asyncio.Runner, flow: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        result = flow(**arguments)
        return {"result": loop.run(result) if inspect.iscoroutine(result) else result}
    except Exception as error:
        return {
            "error": {
                "types": [kind.__name__ for kind in type(error).__mro__],
                "message": str(error),
                "status": getattr(error, "status_code", None),
                "code": getattr(error, "code", None),
                "detail": traceback.format_exc(),
            }
        }


def _plain(value: Any) -> Any:
    """Return the fields of the client's own classes."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else repr(value)


main()
