"""TLS: the certificate and its key, read before anything else, so that a mistake in them is an error at once, and kept
in memory that API processes inherit."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from inflight.server.call_counts import shared_memory
from inflight.server.settings import ServerSettings


class TlsError(ValueError):
    """The certificate or the key cannot be used; the sentence says why."""


class CertificateInForce:
    """Certificate and key as they were last read. A file that changes has no effect until it is read again.

    Attributes:
        descriptors: Of their memory, for processes that inherit it; the key has one if it has a file.
    """

    def __init__(self, settings: ServerSettings):
        """Read the files. Raises TlsError."""
        self._settings = settings
        self.descriptors = tuple(shared_memory() for _ in _files(settings))
        self.read()

    @property
    def path(self) -> Path | None:
        return self._settings.ssl_certfile

    def read(self) -> None:
        """Read the files again. Raises TlsError, and nothing changes."""
        contents = [_read(option, path) for option, path in _files(self._settings)]
        tried = [shared_memory() for _ in contents]
        try:
            _write(tried, contents)
            tls_context(self._settings, tried)
        finally:
            for one in tried:
                os.close(one)
        _write(self.descriptors, contents)


def tls_context(settings: ServerSettings, descriptors: Sequence[int]) -> ssl.SSLContext:
    """Return the context of connections. Raises TlsError. descriptors: as `CertificateInForce` has them."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, settings, descriptors)
    return context


def load_certificate(context: ssl.SSLContext, settings: ServerSettings, descriptors: Sequence[int]) -> None:
    """Take certificate and key for connections that are opened from now on. Raises TlsError."""
    password = settings.ssl_keyfile_password or ""
    files = [f"/dev/fd/{one}" for one in descriptors]
    try:
        # A password is never asked for at the terminal.
        context.load_cert_chain(files[0], files[1] if len(files) > 1 else None, lambda: password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise TlsError(_why(settings, error)) from None


def _files(settings: ServerSettings) -> list[tuple[str, Path]]:
    given = (("--ssl-certfile", settings.ssl_certfile), ("--ssl-keyfile", settings.ssl_keyfile))
    return [(option, path) for option, path in given if path is not None]


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{option} {path} cannot be read ({error.strerror or error}); check the path.") from None


def _write(descriptors: Sequence[int], contents: Sequence[bytes]) -> None:
    for descriptor, content in zip(descriptors, contents, strict=True):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)


def _why(settings: ServerSettings, error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    files = " and ".join(f"{path}" for path in (settings.ssl_certfile, settings.ssl_keyfile) if path is not None)
    if reason == "KEY_VALUES_MISMATCH":
        return f"The key does not belong to the certificate ({files}); give the key that it was issued for."
    if settings.ssl_keyfile is None and "NO_START_LINE" not in str(reason):
        return f"--ssl-certfile {files} cannot be used ({reason}); give its key with --ssl-keyfile, PEM both."
    return (
        f"{files} cannot be used as certificate and key ({reason}); give PEM files, and --ssl-keyfile-password where "
        "the key has one."
    )
