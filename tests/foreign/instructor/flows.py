"""Flows of Instructor over OpenAI's client."""

from __future__ import annotations

import os
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field, field_validator

WHERE: dict[str, Any] = {"base_url": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"], "max_retries": 0}


class City(BaseModel):
    """The form for a model that can only guess: all is bound, so that it comes to an end. This client leaves a
    schema as the class has it."""

    model_config = ConfigDict(extra="forbid")
    name: Literal["Bern", "Zug"]
    inhabitants: int = Field(ge=1, le=999)
    rivers: list[Literal["Aare", "Lorze"]] = Field(max_length=2)


class Report(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int

    @field_validator("city")
    @classmethod
    def is_city(cls, city: str) -> str:
        if city == "Atlantis":
            raise ValueError("Atlantis is no city")
        return city


KINDS: dict[str, type[BaseModel]] = {"City": City, "Report": Report}


def version() -> str:
    from importlib.metadata import version

    return version("instructor")


def _client(mode: str) -> Any:
    return instructor.from_openai(openai.OpenAI(**WHERE), mode=instructor.Mode[mode])


def create(mode: str, kind: str, **fields: Any) -> Any:
    """Asks again, with what was wrong, as often as max_retries says; attempts: how many calls it took."""
    client, attempts = _client(mode), []
    client.on("completion:response", lambda *_, **__: attempts.append(1))
    made = client.create(response_model=KINDS[kind], **fields)
    assert isinstance(made, KINDS[kind])
    return {"made": made.model_dump(), "attempts": len(attempts)}


async def create_async(mode: str, kind: str, **fields: Any) -> Any:
    async with openai.AsyncOpenAI(**WHERE) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode[mode])
        return await client.create(response_model=KINDS[kind], **fields)


def grow(mode: str, kind: str, **fields: Any) -> Any:
    """The object while it is streamed."""
    return [part.model_dump() for part in _client(mode).create_partial(response_model=KINDS[kind], **fields)]
