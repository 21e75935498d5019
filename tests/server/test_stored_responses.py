"""Stored responses through OpenAI's own client, over real HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from breadth import first_of

from .conftest import Server

QUESTION, NEXT = "What is a KV block?", "And a row?"


def create(client: openai.OpenAI, text: Any = QUESTION, **fields: Any) -> Any:
    return client.responses.create(model="built-in", input=text, temperature=0, **fields)


def test_a_conversation_goes_on_from_a_stored_response(client: openai.OpenAI) -> None:
    first = create(client, instructions="You are brief.")
    assert first.store is True
    second = create(client, NEXT, previous_response_id=first.id)
    user, again = {"role": "user", "content": QUESTION}, {"role": "user", "content": NEXT}
    whole = client.responses.create(
        model="built-in",
        input=[user, *first.output, again],  # type: ignore[list-item]
        temperature=0,
    )
    assert second.output_text == whole.output_text and second.previous_response_id == first.id
    assert second.instructions is None, "those of the response before are not taken over"
    assert second.usage.input_tokens == whole.usage.input_tokens  # type: ignore[union-attr]
    third = create(client, "And a lane?", previous_response_id=second.id)
    texts = [item.content[0].text for item in client.responses.input_items.list(third.id, order="asc", limit=2)]  # type: ignore[union-attr]
    assert texts == [QUESTION, first.output_text, NEXT, second.output_text, "And a lane?"]


def test_items_are_found_by_their_ids(client: openai.OpenAI, server: Server) -> None:
    """As clients name them that take what is stored for granted."""
    first = create(client)
    user, again = {"role": "user", "content": QUESTION}, {"role": "user", "content": NEXT}
    named: Any = [user, {"type": "item_reference", "id": first.output[0].id}, again]
    second = client.responses.create(model="built-in", input=named, temperature=0)
    assert second.output_text == create(client, NEXT, previous_response_id=first.id).output_text
    listed = client.responses.input_items.list(second.id, order="asc").data
    assert [item.content[0].text for item in listed] == [QUESTION, first.output_text, NEXT]  # type: ignore[union-attr]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(model="built-in", input=named)
    assert (refused.value.param, refused.value.code) == ("input[1].id", "item_not_found")


def test_what_is_stored_is_what_was_answered_whole_or_streamed(client: openai.OpenAI) -> None:
    whole = create(client, metadata={"job": "1"})
    assert client.responses.retrieve(whole.id).model_dump() == whole.model_dump()
    *_, last = create(client, stream=True, max_output_tokens=3)
    assert last.type == "response.incomplete"
    assert client.responses.retrieve(last.response.id).model_dump() == last.response.model_dump()


def test_what_was_deleted_or_not_stored_is_not_there(client: openai.OpenAI) -> None:
    first = create(client)
    second = create(client, NEXT, previous_response_id=first.id)
    client.responses.delete(first.id)
    for gone in (first.id, create(client, store=False).id, "resp_none"):
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError) as refused:
                ask(gone)
            assert gone in refused.value.message
        with pytest.raises(openai.NotFoundError) as refused:
            create(client, NEXT, previous_response_id=gone)
        assert refused.value.param == "previous_response_id"
    assert create(client, "And a lane?", previous_response_id=second.id).status == "completed"


def test_parameters_that_are_not_served_are_refused(client: openai.OpenAI, server: Server) -> None:
    stored = create(client)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.retrieve(stored.id, stream=True)
    assert refused.value.param == "stream"
    for query, param in (("limit=0", "limit"), ("order=up", "order"), ("include[]=x", "include[]")):
        answer = server.get(f"/v1/responses/{stored.id}/input_items?{query}")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert server.get(f"/v1/responses/{stored.id}/input_items?after=x").status_code == 404
    refused_id = server.post("/v1/responses", {"input": "Hi", "previous_response_id": 1})
    assert refused_id.status_code == 400 and refused_id.json()["error"]["param"] == "previous_response_id"


def test_without_the_switch_all_of_it_is_refused_in_words(scripted: Server) -> None:
    client = scripted.client()
    for fields, param in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"store": True}, "store")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="qwenlike", input="Hi", **fields)  # type: ignore[call-overload]
        assert refused.value.param == param and "--store-responses" in refused.value.message
    assert client.responses.create(model="qwenlike", input="Hi").model_dump()["store"] is False
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as missing:
            ask("resp_1")
        assert "--store-responses" in missing.value.message


@pytest.mark.parametrize("processes", first_of([0, 2]))
def test_it_is_its_tenants_and_survives_the_server(
    start: Callable[..., Server], tmp_path: Path, keys_file: Path, processes: int
) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--store-responses", "--api-keys-file", str(keys_file))
    arguments += ("--api-processes", str(processes)) if processes else ()
    server = start(*arguments)
    acme, umbrella = server.client("sk-acme"), server.client("sk-umbrella")
    stored = [create(acme) for _ in range(2 * processes or 1)]  # of all processes, one of which has the store
    for one in stored:
        named: Any = [{"type": "item_reference", "id": one.output[0].id}, {"role": "user", "content": NEXT}]
        with pytest.raises(openai.NotFoundError):
            umbrella.responses.retrieve(one.id)
        with pytest.raises(openai.NotFoundError):
            create(umbrella, NEXT, previous_response_id=one.id)
        with pytest.raises(openai.NotFoundError):
            create(umbrella, named)
        assert create(acme, named).status == "completed"
    assert server.stop() == 0
    acme = start(*arguments).client("sk-acme")
    for one in stored:
        assert acme.responses.retrieve(one.id).model_dump() == one.model_dump()
        *_, last = create(acme, NEXT, previous_response_id=one.id, stream=True)
        assert acme.responses.retrieve(last.response.id).previous_response_id == one.id


@pytest.mark.wide
def test_what_cannot_be_stored_is_not_answered_as_if_it_were(start: Callable[..., Server], tmp_path: Path) -> None:
    bounds = ("--max-responses-mb", "0.002", "--response-days", "1")
    client = start("--data-dir", str(tmp_path / "data"), "--store-responses", *bounds).client()
    long = f"{QUESTION} " * 30
    with pytest.raises(openai.APIStatusError) as refused:
        create(client, long)
    assert refused.value.status_code == 413 and refused.value.param == "store"  # type: ignore[attr-defined]
    *_, last = create(client, long, stream=True)
    assert last.type == "response.failed" and "what you may keep" in last.response.error.message
    assert create(client, long, store=False).status == "completed"
