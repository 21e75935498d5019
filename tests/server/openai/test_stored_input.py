"""Items that are named by their ids, over a store that is a table."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from inflight.server.errors import ApiError
from inflight.server.openai.responses.stored_input import MAX_RESPONSES, Reference, found, references_of, with_items

SAID = {"id": "msg_1_0", "type": "message", "role": "assistant", "content": "A block."}
STORED = {"resp_1": [{"id": "msg_1_input0", "type": "message", "role": "user", "content": "What?"}, SAID]}


def body(*items: Any, **fields: Any) -> bytes:
    return json.dumps({"input": list(items), **fields}).encode()


def named(item_id: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": item_id}


def resolved(asked: bytes, max_bytes: int = 1000) -> Any:
    read: list[str] = []

    async def history(response_id: str) -> bytes:
        read.append(response_id)
        if response_id not in STORED:
            raise ApiError(404, "There is none.", param="previous_response_id")
        return json.dumps(STORED[response_id]).encode()

    items = asyncio.run(found(references_of(asked), history, max_bytes))
    assert len(read) == len({*read}), "each is read once"
    return json.loads(with_items(asked, items))


def test_an_item_stands_in_the_place_of_its_name() -> None:
    again = {"role": "user", "content": "item_reference?"}
    whole = resolved(body(named("msg_1_input0"), named("msg_1_0"), again, temperature=0))
    assert whole == {"input": [*STORED["resp_1"], again], "temperature": 0}


@pytest.mark.parametrize("item_id", ["msg_1_1", "msg_2_0", "msg", "", "resp_1", "msg_1_0_0"])
def test_a_missing_item_is_named_with_its_place(item_id: str) -> None:
    with pytest.raises(ApiError) as refused:
        resolved(body({"role": "user", "content": "Hi"}, named(item_id)))
    assert (refused.value.status, refused.value.param) == (404, "input[1].id")
    assert "send the item itself" in refused.value.message


def test_ids_of_responses_may_hold_anything() -> None:
    assert Reference(0, "msg_my_own_id_3").response_id == "resp_my_own_id"


@pytest.mark.parametrize("item_id", [None, 1, ["msg_1_0"]])
def test_a_name_is_a_text(item_id: Any) -> None:
    with pytest.raises(ApiError) as refused:
        references_of(body(named(item_id)))
    assert refused.value.param == "input[0].id"


@pytest.mark.parametrize("asked", [b"item_reference", b'{"input": "item_reference"}', b'\xff"item_reference"', body(1)])
def test_other_mistakes_are_the_readers(asked: bytes) -> None:
    assert references_of(asked) == []


def test_one_item_many_times_is_not_put_in_beyond_what_a_body_may_have() -> None:
    size = len(json.dumps(SAID))
    assert len(resolved(body(*[named("msg_1_0")] * 4), 4 * size)["input"]) == 4
    with pytest.raises(ApiError) as refused:
        resolved(body(*[named("msg_1_0")] * 5), 4 * size)
    assert (refused.value.status, refused.value.param) == (413, "input[4].id")


def test_too_many_responses_are_not_read() -> None:
    with pytest.raises(ApiError) as refused:
        resolved(body(*(named(f"msg_{number}_0") for number in range(MAX_RESPONSES + 1))))
    assert refused.value.status == 400 and str(MAX_RESPONSES) in refused.value.message
