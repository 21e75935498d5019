"""One engine computes prompts, another goes on with them: the same answers, and what the second one computed of them.

Call: `python examples/prefill_engines.py [MODEL]`
"""

from __future__ import annotations

import sys

from inflight import LLM, SamplingParams

DOCUMENT = "Continuous batching decides anew before each step which sequences are computed. " * 24
QUESTIONS = ("What is decided?", "When is it decided?", "What is computed?")


def main(model: str | None = None) -> None:
    params = SamplingParams(temperature=0, max_tokens=16)
    prompts = [f"{number}. {DOCUMENT}\n{question}" for number, question in enumerate(QUESTIONS, 1)]
    with LLM(model, prefill_engines=1) as apart:
        outputs = apart.generate(prompts, params)
    for question, output in zip(QUESTIONS, outputs, strict=True):
        prompt, taken = len(output.prompt_token_ids), output.timings.cached_tokens
        print(f"{question} {output.outputs[0].text!r}: {taken} of {prompt} tokens were computed by the other engine")
    with LLM(model) as one:
        same = [output.outputs[0].text for output in one.generate(prompts, params)]
    print("One engine says the same." if same == [one.outputs[0].text for one in outputs] else "They differ!")


if __name__ == "__main__":
    main(*sys.argv[1:2])
