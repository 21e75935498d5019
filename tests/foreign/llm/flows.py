"""Flows of `llm` as a library; at the command line it needs none."""

from __future__ import annotations

from typing import Any

import llm

RESULTS = {"weather": "21 degrees", "inhabitants": "440 thousand people"}


def version() -> str:
    from importlib.metadata import version

    return version("llm")


async def converse(model: str, prompts: list[str], **options: Any) -> Any:
    conversation = llm.get_async_model(model).conversation()
    texts = []
    for one in prompts:
        response = await conversation.prompt(one, system="You are brief.", stream=False, **options)
        texts.append(await response.text())
    return texts


async def run_tools(model: str, prompt: str, stream: bool) -> Any:
    called: list[Any] = []

    def weather(city: str) -> str:
        """The weather of a city."""
        called.append(["weather", {"city": city}])
        return RESULTS["weather"]

    async def inhabitants(city: str) -> str:
        """How many live in a city."""
        called.append(["inhabitants", {"city": city}])
        return RESULTS["inhabitants"]

    chain = llm.get_async_model(model).chain(prompt, tools=[weather, inhabitants], stream=stream)
    return {"called": called, "text": "".join([part async for part in chain])}
