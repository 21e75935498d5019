"""`inflight` with a scripted agent, on a device that computes nothing: run in place of the command line, and
by that as the engine's process.

Who says one of these texts last, a user or a tool, is answered as the table has it. So a client's own loop of calls and
results runs to its end, over everything of the server but the weights.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from server.scripted import write_qwenlike

from inflight import build
from inflight.core.types.executor import Executor
from inflight.testing.null import NullExecutor
from inflight.testing.scripted import ScriptedExecutor
from inflight.text import Tokenizer

PROGRAM = (str(Path(__file__)),)
WARM = "How warm is it in Zürich?"
WARM_AND_LARGE = "How warm is Zürich, and how large?"
MEASURE = "Measure Zürich and report."
REPORT = "Report on Zürich at once."
REPORT_AGAIN = "Report on Atlantis at once."
REPORT_AS_JSON = "Report on Zürich in JSON."
DESK = "Somebody at the desk shall tell how warm and how large Zürich is."
EXPERT = "Ask an expert how warm and how large Zürich is."
SURVEY = "Survey Zürich."
IN_SAN_FRANCISCO = "What's the weather like in San Francisco?"
THINK = "Think about six times seven."
THINK_AND_CALL = "Think first: how warm is it there?"
# What the flows' tools return.
DEGREES, PEOPLE, MEASURED, SURVEYED = "21 degrees", "440 thousand people", "measured: 21", "surveyed: 21"
NO_CITY = "Atlantis is no city"  # what a flow's own check says of an answer


def call(name: str, **arguments: Any) -> str:
    """As a model writes it that was trained on Hermes' form."""
    called = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{called}\n</tool_call>"


IS_WARM = "It is 21 degrees in Zürich."
IS_WARM_AND_LARGE = "It is 21 degrees, and 440 thousand people live there."
BOTH = f"{call('weather', city='Zürich')}\n{call('inhabitants', city='Zürich')}"
ANSWERS = {
    WARM: f"Let me see.\n{call('weather', city='Zürich')}",
    WARM_AND_LARGE: BOTH,
    MEASURE: call("measure", city="Zürich"),
    MEASURED: call("final_result", city="Zürich", degrees=21),
    REPORT: call("Report", city="Zürich", degrees=21),
    REPORT_AGAIN: call("Report", city="Atlantis", degrees=21),
    REPORT_AS_JSON: call("json", city="Zürich", degrees=21),
    NO_CITY: call("Report", city="Zürich", degrees=21),
    DESK: call("transfer_to_weather_desk"),
    '"Weather desk"': BOTH,  # the agent of a handoff, as the client names it
    EXPERT: call("expert", input=WARM_AND_LARGE),
    IN_SAN_FRANCISCO: call("get_weather", location="San Francisco, CA"),
    SURVEY: call("survey", city="Zürich"),
    SURVEYED: '{"city": "Zürich", "degrees": 21}',
    IS_WARM_AND_LARGE: "The expert says so.",  # when it comes back as a tool's result
    DEGREES: IS_WARM,
    PEOPLE: IS_WARM_AND_LARGE,
    THINK: "<think>\nSeven sixes.\n</think>\n\n42",
    THINK_AND_CALL: f"<think>\nI must look.\n</think>\n\n{call('weather', city='Zürich')}",
}


def write_model(folder: Path) -> Path:
    """It shows tools and reasoning as a Qwen does, and has room for what agents write into their prompts."""
    config = write_qwenlike(folder) / "config.json"
    answer = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**answer, "max_position_embeddings": 8192}), encoding="utf-8")
    return folder


def scripted(executor: Executor, *_: object) -> Executor:
    tokenizer = Tokenizer.load(build.BUILT_IN)
    end = tokenizer.eos_token_id
    assert end is not None

    def script(prompt: tuple[int, ...], sample: int) -> list[int]:
        said = tokenizer.decode(list(prompt), skip_special_tokens=False).rpartition("<|user|>")[2]
        said = said.partition("<|end|>")[0]
        text = next((answer for key, answer in ANSWERS.items() if key in said), "I do not know.")
        return [*tokenizer.encode(text), end]

    return ScriptedExecutor(NullExecutor(executor.capacity), script)


if __name__ == "__main__":
    if sys.argv[1].isdigit():  # as the engine's process
        from inflight.launch import engine_process

        os._exit(engine_process.main(socket.socket(fileno=int(sys.argv[1])), scripted))
    from inflight import cli
    from inflight.launch import one_model

    here = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join((str(here), str(here.parent)))
    one_model.LOCAL_ENGINE = one_model.EngineProgram(module="scripted")
    sys.argv[0] = "inflight"
    cli.main()
