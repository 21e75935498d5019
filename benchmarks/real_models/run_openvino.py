"""Runner of OpenVINO: the model that its exporter wrote, with the settings of `benchmarks.peers.run_openvino`.

Reads a job from standard input (see `engines`). The pipeline of OpenVINO GenAI returns the log-probability of one token
a position, so the same plugin is asked through the model's own inputs; only the paging of keys and values differs.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.real_models.answers import Collected, Questions


def main() -> None:
    import numpy
    import openvino  # type: ignore[import-not-found]  # not in this environment

    job = json.load(sys.stdin)
    questions = Questions.load(Path(job["questions"]))
    device = {
        "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16",
    }
    compiled = openvino.Core().compile_model(str(Path(job["model"]) / "openvino_model.xml"), "CPU", device)
    names = {name for one in compiled.inputs for name in one.get_names()}
    request = compiled.create_infer_request()
    collected = Collected(questions)
    for text in questions.texts:
        request.reset_state()
        ids = text[None, :-1].astype(numpy.int64)
        given = {
            "input_ids": ids,
            "attention_mask": numpy.ones_like(ids),
            "position_ids": numpy.arange(ids.shape[1])[None],
            "beam_idx": numpy.zeros(1, numpy.int32),
        }
        found = request.infer({name: value for name, value in given.items() if name in names})
        collected.take(numpy.asarray(found["logits"], numpy.float32)[0])
    collected.answers(f"openvino {version('openvino')}").save(Path(job["answers"]))


if __name__ == "__main__":
    main()
