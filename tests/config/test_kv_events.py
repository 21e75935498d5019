"""`--kv-events-config`: its JSON, and errors by key."""

from __future__ import annotations

import pytest

from inflight.config.kv_events import read_kv_events
from inflight.config.setting import SettingsError
from inflight.engine.kv_events import KVEventOptions


def test_vllms_own_form_is_read() -> None:
    assert read_kv_events(
        '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:7", "replay_endpoint": "tcp://*:8", '
        '"buffer_steps": 10, "hwm": 20, "max_queue_size": 30, "topic": "kv@a@b"}'
    ) == KVEventOptions(
        endpoint="tcp://*:7", replay_endpoint="tcp://*:8", buffer_steps=10, hwm=20, max_queue_size=30, topic="kv@a@b"
    )
    assert read_kv_events('{"enable_kv_cache_events": true, "replay_endpoint": null}') == KVEventOptions()


@pytest.mark.parametrize("text", ["{}", '{"enable_kv_cache_events": false}', '{"topic": "x"}'])
def test_nothing_is_published_unless_enabled(text: str) -> None:
    assert read_kv_events(text) is None
    assert read_kv_events('{"enable_kv_cache_events": true, "publisher": "null"}') is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{enable", "is not JSON"),
        ("[]", r"is \[\], which is no object"),
        ('{"enable_kv_events": true}', "Did you mean enable_kv_cache_events"),
        ('{"enable_kv_cache_events": "yes"}', 'is "yes"; give true or false'),
        ('{"publisher": "nats"}', 'publisher is "nats"; known are "zmq"'),
        ('{"publisher": "zmq"}', "enable_kv_cache_events is not true"),
        ('{"endpoint": 5557}', "endpoint is 5557; give a text"),
        ('{"endpoint": null}', "endpoint is null; give a text"),
        ('{"replay_endpoint": ""}', "give an address like"),
        ('{"hwm": true}', "hwm is true; give a whole number"),
        ('{"buffer_steps": 0}', "buffer_steps is 0; give a whole number above 0"),
        ('{"max_queue_size": 1.5}', "is 1.5; give a whole number"),
        ('{"topic": ["a"]}', r'topic is \["a"\]; give a text'),
    ],
)
def test_an_error_names_its_key(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read_kv_events(text)
