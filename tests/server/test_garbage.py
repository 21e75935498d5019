"""What clients leave behind goes when they go: nothing waits for the collector, which stops everybody for a look."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

# A server in this very process, and a client of it in a thread, which looks for what refers to itself.
SCRIPT = """
import collections, gc, json, os, signal, socket, sys, threading, time, urllib.request
from inflight.cli import main

PORT = int(sys.argv[1])

def visit(wire, reads):
    with socket.create_connection(("127.0.0.1", PORT), timeout=30) as line:
        line.sendall(wire)
        if reads:
            while line.recv(65536):
                pass

def post(body, close="Connection: close\\r\\n"):
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\\r\\nHost: x\\r\\n{close}Content-Length: {len(data)}\\r\\n\\r\\n"
    return head.encode() + data

STREAM = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True}
VISITS = {
    "idle": (b"", False),
    "half a head": (b"GET /health HT", False),
    "half a body": (b"POST /v1/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 100\\r\\n\\r\\n{", False),
    "health": (b"GET /health HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n", True),
    "nowhere": (b"GET /nowhere HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n", True),
    "refused": (post({"prompt": [-1]}), True),
    "long and refused": (post({"prompt": [[]] * 20000}), True),
    "answered": (post({"prompt": "x", "max_tokens": 2}), True),
    "streamed": (post({**STREAM, "max_tokens": 9}), True),
    "left": (post(STREAM, ""), False),
    "no HTTP": (bytes(9), True),
}

def visits():
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).read()
            break
        except OSError:
            time.sleep(0.1)
    left = {}
    for name, (wire, reads) in VISITS.items():
        for _ in range(2):  # what is made once, is made by the first
            gc.collect()
            for _ in range(10):
                visit(wire, reads)
            time.sleep(0.5)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            gc.set_debug(0)
            found = collections.Counter(type(one).__qualname__ for one in gc.garbage)
            gc.garbage.clear()
        left[name] = [what for what, count in found.items() if count >= 5]
    print(json.dumps(left), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=visits, daemon=True).start()
sys.argv = ["inflight", "serve", "--port", str(PORT)]
main()
"""


@pytest.mark.wide
@pytest.mark.timeout(120)
def test_connections_and_requests_leave_nothing_for_the_collector() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(port)], capture_output=True, text=True, timeout=110, check=False
    )
    left = json.loads(done.stdout.splitlines()[-1])
    assert len(left) == 11 and not any(left.values()), left
