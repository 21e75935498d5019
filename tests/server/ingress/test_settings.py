"""Settings of the ingress that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.config.setting import SettingsError
from inflight.server.ingress.addresses import Networks, address_key
from inflight.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"header_timeout": 0}, "--header-timeout is 0"),
        ({"body_timeout": float("nan")}, "--body-timeout is nan"),
        ({"http_keep_alive": -1}, "--http-keep-alive is -1"),
        ({"max_connections": 0}, "--max-connections is 0"),
        ({"max_connections_per_address": 0}, "--max-connections-per-address is 0"),
        ({"max_connections": 10, "max_connections_per_address": 11}, "from 1 to --max-connections"),
        ({"max_body_mb": 100}, "the largest body would never fit"),
        ({"trusted_proxies": ("proxy",)}, "give an address or a network"),
        ({"trusted_proxies": ("10.0.0.1/8",)}, "has host bits set"),
        ({"cors_origin": ("chat.example.com",)}, "such as https://chat.example.com"),
        ({"cors_origin": ("https://chat.example.com/",)}, "such as https://chat.example.com"),
        ({"allowed_hosts": ("https://llm.example.com",)}, "without scheme"),
        ({"root_path": "/llm/"}, "without a slash at its end"),
        ({"generation_config": "/nowhere"}, "a folder that holds generation_config.json"),
        ({"override_generation_config": {"temprature": 1}}, "it has 'temprature'; known are temperature, "),
        ({"override_generation_config": {"top_p": 2}}, "--override-generation-config: top_p is 2"),
        ({"ssl_keyfile": Path("key")}, "no effect without --ssl-certfile"),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        ServerSettings(**given)


def test_addresses_count_as_machines() -> None:
    assert address_key("10.0.0.1") == address_key("::ffff:10.0.0.1") != address_key("10.0.0.2")
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff:1") != address_key("2001:db8:0:1::1")
    assert address_key("nonsense") == address_key("x" * 5000) == "unknown"
    assert "10.1.2.3" in Networks(("10.0.0.0/8", "::1")) and "::1" in Networks(("::1",))
    assert "11.0.0.1" not in Networks(("10.0.0.0/8",)) and "nonsense" not in Networks(("10.0.0.0/8",))
