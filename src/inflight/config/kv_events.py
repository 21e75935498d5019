"""Read `--kv-events-config`: JSON as of vLLM, checked key by key."""

from __future__ import annotations

import json
from typing import Any

from inflight.config.setting import SettingsError
from inflight.counted import UNBOUNDED, did_you_mean
from inflight.engine.kv_events import KVEventOptions

OPTION = "--kv-events-config"
_ENABLE, _PUBLISHER = "enable_kv_cache_events", "publisher"
_TEXTS = ("endpoint", "replay_endpoint", "topic")
_COUNTS = ("buffer_steps", "hwm", "max_queue_size")
_KNOWN = (_ENABLE, _PUBLISHER, *_TEXTS, *_COUNTS)
_LIKE = '\'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}\''


def read_kv_events(text: str) -> KVEventOptions | None:
    """Read the option; None: no events are published. Raises SettingsError."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"{OPTION} is not JSON ({error.msg}, at character {error.pos}); write it like {_LIKE}."
        ) from None
    if not isinstance(given, dict):
        raise SettingsError(f"{OPTION} is {text}, which is no object; write it like {_LIKE}.")
    for name, value in given.items():
        _check(name, value)
    if not _is_enabled(given):
        return None
    return KVEventOptions(**{name: value for name, value in given.items() if name in (*_TEXTS, *_COUNTS)})


def _is_enabled(given: dict[str, Any]) -> bool:
    enabled, publisher = given.get(_ENABLE, False), given.get(_PUBLISHER)
    if not enabled and publisher == "zmq":
        raise SettingsError(
            f'{OPTION}: publisher is "zmq", but {_ENABLE} is not true; set it, or leave the option out.'
        )
    return enabled and publisher != "null"


def _check(name: str, value: Any) -> None:
    """Check one key. Raises SettingsError."""
    if name not in _KNOWN:
        raise SettingsError(f"{OPTION} has {name!r}; known are {', '.join(_KNOWN)}.{did_you_mean(name, _KNOWN)}")
    where = f"{OPTION}: {name} is {json.dumps(value)}"
    if name == _ENABLE and not isinstance(value, bool):
        raise SettingsError(f"{where}; give true or false.")
    if name == _PUBLISHER and value not in ("zmq", "null", None):
        raise SettingsError(f'{where}; known are "zmq", and "null" for none.')
    if name in _TEXTS and not (isinstance(value, str) or (value is None and name == "replay_endpoint")):
        raise SettingsError(f"{where}; give a text.")
    if name in ("endpoint", "replay_endpoint") and value == "":
        raise SettingsError(f"{where}; give an address like tcp://*:5557, or leave it out.")
    if name in _COUNTS and not (type(value) is int and 0 < value <= UNBOUNDED):
        raise SettingsError(f"{where}; give a whole number above 0.")
