"""TLS with a certificate made for the occasion, and every way to give a wrong one."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from inflight.server.settings import ServerSettings
from inflight.server.tls import CertificateInForce, TlsError

from ..conftest import Server, children
from .raw import Raw

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates")


def made(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    arguments = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    arguments += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate)]
    arguments += ["-keyout", str(key), *(more or ("-nodes",))]
    subprocess.run([str(OPENSSL), *arguments], check=True, capture_output=True)
    return certificate, key


def test_it_speaks_tls(start: Callable[..., Server], tmp_path: Path) -> None:
    certificate, key = made(tmp_path, "own")
    server = start("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), ready=False)
    assert server.settled(lambda: any("Ready at https://127.0.0.1:" in line for line in server.log), 60)
    url = next(line for line in server.log if "Ready at" in line).split("Ready at ")[1].split(" ")[0]
    trusting = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(verify=trusting, timeout=30) as client:
        assert client.get(url + "/health").status_code == 200
        body = {"prompt": "Once", "max_tokens": 3}
        assert client.post(url + "/v1/completions", json=body).json()["choices"]
        assert client.post(url + "/v1/completions", content=b"x" * (9 << 20)).status_code == 413
        with client.stream("POST", url + "/v1/completions", json={**body, "stream": True}) as stream:
            assert list(stream.iter_lines())[-2] == "data: [DONE]"
    assert server.stop() == 0


def test_a_new_certificate_is_taken_on_sighup(start: Callable[..., Server], tmp_path: Path) -> None:
    certificate, key = made(tmp_path, "own")
    server = start("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), ready=False)
    assert server.settled(lambda: any("Ready at https://" in line for line in server.log), 60)
    port = int(next(line for line in server.log if "Ready at" in line).split("127.0.0.1:")[1].split(" ")[0])

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", port)).strip()

    def hang_up(said: str) -> None:
        server.process.send_signal(signal.SIGHUP)
        assert server.settled(lambda: said in "".join(server.log)), server.log

    first = shown()
    made(tmp_path, "own")
    hang_up("is reloaded, for new connections")
    second = certificate.read_text(encoding="ascii").strip()
    assert second != first and server.settled(lambda: shown() == second), "once the API process has it"
    key.write_text("no key", encoding="ascii")
    hang_up("The previous certificate stays in force.")
    assert shown() == second
    [child] = children(server, "inflight.server.processes.child")
    os.kill(child, signal.SIGKILL)
    assert server.settled(lambda: children(server, "inflight.server.processes.child") not in ([], [child]))
    assert server.settled(lambda: "is restarted" in "".join(server.log)) and shown() == second, "the next one has it"
    assert server.stop() == 0


def test_handshakes_that_never_come_do_not_keep_others_out(start: Callable[..., Server], tmp_path: Path) -> None:
    certificate, key = made(tmp_path, "own")
    options = ("--max-connections", "16", "--max-connections-per-address", "16")
    server = start("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), *options, ready=False)
    assert server.settled(lambda: any("Ready at https://" in line for line in server.log), 60)
    server.url = next(line for line in server.log if "Ready at" in line).split("Ready at https://")[1].split(" ")[0]
    silent = [Raw(server) for _ in range(40)]
    trusting = ssl.create_default_context(cafile=str(certificate))
    assert httpx.get(f"https://{server.url}/health", verify=trusting).status_code == 200
    assert len(silent) == 40 and "Traceback" not in "".join(server.log)


def test_a_password_opens_the_key(tmp_path: Path) -> None:
    certificate, key = made(tmp_path, "locked", "-passout", "pass:secret")
    given = {"ssl_certfile": certificate, "ssl_keyfile": key}
    CertificateInForce(ServerSettings(**given, ssl_keyfile_password="secret"))
    for password in (None, "wrong"):
        with pytest.raises(TlsError, match="--ssl-keyfile-password"):
            CertificateInForce(ServerSettings(**given, ssl_keyfile_password=password))
    assert "swordfish" not in repr(ServerSettings(**given, ssl_keyfile_password="swordfish"))


def test_what_is_wrong_is_reported(tmp_path: Path) -> None:
    certificate, key = made(tmp_path, "own")
    other = made(tmp_path, "other")[1]
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate", encoding="ascii")
    for given, said in (
        ((tmp_path / "none.pem", key), "--ssl-certfile .*none.pem cannot be read"),
        ((certificate, tmp_path / "none.key"), "--ssl-keyfile .*none.key cannot be read"),
        ((certificate, other), "does not belong to the certificate"),
        ((certificate, None), "cannot be used"),
        ((rubbish, key), "give PEM files"),
        ((certificate, rubbish), "give PEM files"),
    ):
        with pytest.raises(TlsError, match=said):
            CertificateInForce(ServerSettings(ssl_certfile=given[0], ssl_keyfile=given[1]))
