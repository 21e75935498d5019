"""Runner of ONNX Runtime GenAI: a token at a time, since its models keep the logits of a prompt's last token alone.

Reads a job from standard input (see `engines`).
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
    import onnxruntime_genai  # type: ignore[import-not-found]  # not in this environment

    job = json.load(sys.stdin)
    questions = Questions.load(Path(job["questions"]))
    config = onnxruntime_genai.Config(job["model"])
    threads = {"session_options": {"intra_op_num_threads": len(os.sched_getaffinity(0))}}
    config.overlay(json.dumps({"model": {"decoder": threads}}))
    model = onnxruntime_genai.Model(config)
    collected = Collected(questions)
    for text in questions.texts:
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(max_length=len(text) + 1, do_sample=False)
        generator = onnxruntime_genai.Generator(model, parameters)
        for token in text[:-1]:
            generator.append_tokens(numpy.array([token], numpy.int32))
            collected.take(numpy.asarray(generator.get_output("logits"), numpy.float32).reshape(1, -1))
    collected.answers(f"onnxruntime-genai {version('onnxruntime-genai')}").save(Path(job["answers"]))


if __name__ == "__main__":
    main()
