"""A Ray that cannot be used gives an error message before anything is started."""

from __future__ import annotations

import socket

import pytest

from inflight.config.setting import SettingsError
from inflight.ray.head import check_address, check_version


@pytest.mark.parametrize("address", ["ray://there:10001", "there", ":6379", "there:", "there:0", "there:99999", "a:b"])
def test_a_malformed_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(SettingsError, match=r"give HOST:PORT of a head.*or auto"):
        check_address(address)


def test_an_unreachable_head_is_reported_with_the_next_step() -> None:
    with socket.socket() as bound:  # and listens not
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(SettingsError, match=rf"{address} cannot be reached \(.*refused\).*ray start --head"):
            check_address(address)


def test_one_that_listens_and_the_clusters_own_pass() -> None:
    check_address("auto")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        check_address(f"127.0.0.1:{listening.getsockname()[1]}")


def test_an_old_version_is_refused_with_both_versions() -> None:
    for version in ("2.55.0", "2.60.1", "3.0.0rc1", "10.1"):
        check_version(version)
    for version in ("2.54.9", "1.13.0"):
        with pytest.raises(SettingsError, match=rf"2\.55 or later, and {version} is installed"):
            check_version(version)
