"""Runner of ONNX Runtime, as fastembed has it compute: a graph of the model in float32.

Runs in an environment that has onnxruntime, over the graph that `export` wrote.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.embeddings.runner import Job, Padded, serve


def make(job: Job) -> Padded:
    import onnxruntime  # type: ignore[import-not-found]  # not in the environment that checks types

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    path = str(Path(job.model) / "model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def compute(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {"ids": ids, "mask": mask})[0])

    return Padded(f"ONNX Runtime {version('onnxruntime')}", compute)


if __name__ == "__main__":
    serve(make)
