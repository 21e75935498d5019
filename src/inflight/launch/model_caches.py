"""The caches of models, for servers, which know none: `python -m inflight.launch.model_caches pull|find|delete NAME`.

It writes lines of JSON: the steps of a pull, the path that is found, and where it fails {"error": sentence, "status":
of HTTP}. It ends when its standard output is closed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from inflight.config.engine import EngineSettings
from inflight.models.errors import ModelError


def local_path(settings: EngineSettings) -> str:
    """Return the folder or file of the model of an engine; empty where it is not on this machine yet."""
    from inflight.build import BUILT_IN
    from inflight.execution.checkpoints.local_models import find_model

    try:
        path = BUILT_IN if settings.model is None else Path(settings.model).expanduser()
        return str(path if path.exists() else find_model(str(settings.model)).path)
    except (ModelError, OSError):
        return ""


def main() -> int:
    verb, name = sys.argv[1:]
    try:
        if verb == "pull":
            from inflight.execution.checkpoints.hub import pull_model

            pull_model(name, report=_write)
        elif verb == "find":
            from inflight.execution.checkpoints.local_models import find_model

            _write({"path": str(find_model(name).path)})
        else:
            _delete(name)
    except ModelError as error:
        _write({"error": str(error), "status": 500 if verb == "pull" else 404})
    except OSError as error:
        _write({"error": f"The model {name!r} cannot be deleted: {error.strerror}.", "status": 500})
    return 0


def _delete(name: str) -> None:
    """Delete a model that no server of this user has. Raises ModelError, OSError."""
    from inflight.execution.checkpoints.local_models import delete_model, find_model
    from inflight.launch.running_servers import servers_of

    model = find_model(name)
    if servers := servers_of(model):
        _write({"error": f"The model {name!r} is in use by the server at {servers[0].url}; end that.", "status": 409})
    else:
        delete_model(model)


def _write(line: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
