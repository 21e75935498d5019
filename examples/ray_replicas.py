"""Two engines under Ray Serve, started from Python: a request goes where it costs least.

    pip install 'inflight-llm[ray]'; python examples/ray_replicas.py

On a cluster, call it where `ray.init()` finds the head; options are those of `inflight serve`, by their long names.
"""

from __future__ import annotations

import json
import sys
from urllib.request import Request, urlopen

from ray import serve

from inflight.cli.replicas.application import app

PORT = 8000
OPTIONS = {"replicas": "2", "router": "prefix-aware", "threads": "1", "max-num-seqs": "16"}


def main(port: int = PORT) -> None:
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app(OPTIONS), name="inflight", route_prefix="/")
    body = {"messages": [{"role": "user", "content": "What is continuous batching?"}], "temperature": 0}
    asked = Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(asked, timeout=120) as answered:
        print(json.load(answered)["choices"][0]["message"]["content"])
    serve.shutdown()


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
