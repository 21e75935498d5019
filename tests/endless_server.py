"""A server that answers each request with a line that does not end."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

PIECE, MAX_BYTES = b"x" * (1 << 16), 64 << 20  # then it ends, and a client that reads so much has no bound


@contextlib.contextmanager
def endless_server(
    status: str = "200 OK", content_type: str = "text/event-stream", begin: bytes = b""
) -> Iterator[str]:
    """Yield its address. begin: the line's first bytes."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n".encode() + begin

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while b"\r\n\r\n" not in connection.recv(1 << 16):
                pass
            connection.sendall(head)
            for _ in range(MAX_BYTES // len(PIECE)):
                connection.sendall(PIECE)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
