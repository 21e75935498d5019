"""TLS: the certificate and its key, read before anything else, so that a mistake in them is an error at once."""

from __future__ import annotations

import ssl

from inflight.server.settings import ServerSettings


class TlsError(ValueError):
    """The certificate or the key cannot be used; the sentence says why."""


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """Return the context of connections; None where no certificate is given. Raises TlsError."""
    if settings.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: ServerSettings) -> None:
    """Read certificate and key for connections that are opened from now on. Raises TlsError."""
    certificate, key = settings.ssl_certfile, settings.ssl_keyfile
    assert certificate is not None, "checked"
    for option, path in (("--ssl-certfile", certificate), ("--ssl-keyfile", key)):
        if path is None:
            continue
        try:
            path.open("rb").close()
        except OSError as error:
            raise TlsError(f"{option} {path} cannot be read ({error.strerror or error}); check the path.") from None
    password = settings.ssl_keyfile_password or ""
    try:
        context.load_cert_chain(certificate, key, lambda: password)  # never asks at the terminal
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise TlsError(_why(settings, error)) from None


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
