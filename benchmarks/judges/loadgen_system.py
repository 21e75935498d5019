"""A system under test for MLPerf's LoadGen: each query is a streamed completion of a server. Runs in LoadGen's
environment, with nothing else than it and the standard library.

Usage: loadgen_system.py JOB, a JSON file with url, model, prompts, output_tokens, queries, rate and folder.
"""

from __future__ import annotations

import array
import http.client
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mlperf_loadgen  # type: ignore[import-not-found]  # of another environment

# The limits of MLPerf's Llama-3.1-8B in the Server scenario, p99 of each (mlperf.conf in the package).
TTFT_S, TPOT_S, SHARE = 2.0, 0.1, 0.99


class System:
    """Answers queries, each on a thread and a connection of its own."""

    def __init__(self, job: dict[str, Any]):
        self._job = job
        behind = urlsplit(job["url"])
        self._address = (behind.hostname or "127.0.0.1", behind.port or 80)
        self.errors: list[str] = []
        self.issued: list[dict[str, Any]] = []  # of each query, when it came and the id of its answer

    def issue(self, samples: list[Any]) -> None:
        for sample in samples:
            self.issued.append({"at": time.perf_counter(), "id": ""})
            threading.Thread(target=self._answer, args=(sample.id, sample.index, self.issued[-1])).start()

    def flush(self) -> None:
        """Do nothing: no query is kept back."""

    def _answer(self, number: int, index: int, issued: dict[str, Any]) -> None:
        try:
            tokens = self._stream(number, self._job["prompts"][index], issued)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.errors.append(repr(error))
            tokens = 0
        # LoadGen reads the tokens' number; the bytes would be the answer in an accuracy run.
        self._complete(mlperf_loadgen.QuerySamplesComplete, number, tokens)

    def _stream(self, number: int, prompt: list[int], issued: dict[str, Any]) -> int:
        """Send a query and report its first token. Returns the number of tokens, by the server's usage."""
        body = {
            "model": self._job["model"],
            "prompt": prompt,
            "max_tokens": self._job["output_tokens"],
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection(*self._address, timeout=300)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {response.read()[:200]!r}")
        first, tokens = True, 0
        for line in response:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            frame = json.loads(line[6:])
            if first and frame["choices"]:
                first = False
                issued["id"] = frame["id"]
                self._complete(mlperf_loadgen.FirstTokenComplete, number, 1)
            if frame.get("usage"):
                tokens = frame["usage"]["completion_tokens"]
        connection.close()
        return tokens

    @staticmethod
    def _complete(report: Any, number: int, tokens: int) -> None:
        content = array.array("i", [0])
        address, length = content.buffer_info()
        report([mlperf_loadgen.QuerySampleResponse(number, address, length * content.itemsize, tokens)])


def settings_of(job: dict[str, Any]) -> Any:
    settings = mlperf_loadgen.TestSettings()
    settings.scenario = mlperf_loadgen.TestScenario.Server
    settings.mode = mlperf_loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = job["rate"]
    settings.server_target_latency_ns = 0
    settings.server_target_latency_percentile = SHARE
    settings.use_token_latencies = True
    settings.ttft_latency = round(TTFT_S * 1e9)
    settings.tpot_latency = round(TPOT_S * 1e9)
    settings.min_query_count = settings.max_query_count = job["queries"]
    settings.min_duration_ms = 0
    return settings


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    system = System(job)
    sut = mlperf_loadgen.ConstructSUT(system.issue, system.flush)
    count = len(job["prompts"])
    library = mlperf_loadgen.ConstructQSL(count, count, lambda indices: None, lambda indices: None)
    logs = mlperf_loadgen.LogSettings()
    logs.log_output.outdir = job["folder"]
    logs.log_output.copy_summary_to_stdout = True
    logs.enable_trace = True  # has the schedule
    mlperf_loadgen.StartTestWithLogSettings(sut, library, settings_of(job), logs)
    mlperf_loadgen.DestroyQSL(library)
    mlperf_loadgen.DestroySUT(sut)
    (Path(job["folder"]) / "issued.json").write_text(json.dumps(system.issued), encoding="utf-8")
    print(f"errors: {len(system.errors)} {system.errors[:3]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
