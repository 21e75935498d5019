"""Runner of OpenVINO: the same graph, compiled for throughput of one request at a time, in the precision that is asked.

Runs in an environment that has openvino, over the graph that `export` wrote.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.embeddings.runner import Job, Padded, serve


def make(job: Job) -> Padded:
    import openvino  # type: ignore[import-not-found]  # not in the environment that checks types

    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": job.threads,
        "INFERENCE_PRECISION_HINT": "bf16" if job.precision == "bfloat16" else "f32",
    }
    compiled = core.compile_model(str(Path(job.model) / "model.onnx"), "CPU", settings)
    request = compiled.create_infer_request()

    def compute(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.array(request.infer({"ids": ids, "mask": mask})[0])

    return Padded(f"OpenVINO {openvino.__version__.partition('-')[0]}", compute)


if __name__ == "__main__":
    serve(make)
