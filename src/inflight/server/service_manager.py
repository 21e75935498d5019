"""Reports to the service manager that started the server (systemd, `Type=notify`), by the protocol of sd_notify(3).

Without NOTIFY_SOCKET in the environment, nothing is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time

MICROSECONDS = 1_000_000


class ServiceManager:
    """Sends states to the manager's socket."""

    def __init__(self) -> None:
        """Take the socket's address out of the environment, so that no child reports in the server's name."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        watchdog = os.environ.pop("WATCHDOG_USEC", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_seconds = int(watchdog) / MICROSECONDS if watchdog.isascii() and watchdog.isdigit() else 0.0

    def ready(self, url: str) -> None:
        """Report that the server takes calls."""
        self._send("READY=1", f"STATUS=Ready at {url}.")

    def status(self, sentence: str) -> None:
        """Report what the server does, for `systemctl status`."""
        self._send(f"STATUS={sentence}")

    def reloading(self) -> None:
        """Report that files are read again; `ready` reports the end of it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the server ends."""
        self._send("STOPPING=1")

    async def keep_watchdog(self) -> None:
        """Report, as long as this event loop runs, that it does; return where the manager asks for no reports."""
        while self._address and self.watchdog_seconds > 0:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 3)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.setblocking(False)
            end.sendto("\n".join(lines).encode(), self._address)
