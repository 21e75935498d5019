"""Keys and tenants: who is let in, how much each may have, and what they cannot see of each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from inflight.records.schema import of_kind, read_records
from inflight.server.errors import ApiError
from inflight.server.settings import ServerSettings
from inflight.server.tenants import KeysError, load_tenants

from .conftest import Server

HELLO: Any = [{"role": "user", "content": "What is a KV block?"}]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_keys_everyone_is_let_in() -> None:
    tenants = load_tenants()
    assert not tenants.required and tenants.of(None).name == "" and tenants.of("Bearer x").name == ""


def test_keys_name_tenants(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"secret-two").hexdigest()
    path = written(tmp_path, f'[acme]\nkey = "secret-one"\nweight = 2\n[umbrella]\nkey_sha256 = "{digest}"\n')
    tenants = load_tenants(["mine"], path)
    assert tenants.of("Bearer secret-one").name == "acme" and tenants.of("bearer secret-two").name == "umbrella"
    assert tenants.of("Bearer mine").name == "default" and tenants.weights == {"acme": 2}
    for header, code in ((None, "missing_api_key"), ("Basic x", "missing_api_key"), ("Bearer no", "invalid_api_key")):
        with pytest.raises(ApiError) as caught:
            tenants.of(header)
        assert caught.value.status == 401 and caught.value.code == code and "no" not in caught.value.message.split()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no tenants"),
        ("[a]\n", "needs a table with either key"),
        ('[a]\nkey = "x"\nkey_sha256 = "y"\n', "either key or key_sha256"),
        ('[a]\nkey = ""\n', "is empty"),
        ('[a]\nkey_sha256 = "12"\n', "64 hexadecimal digits"),
        ('[a]\nkey = "x"\nweight = 0\n', "weight 0"),
        ('[a]\nkey = "x"\nmax_concurrent = 0\n', "max_concurrent 0"),
        ('[a]\nkey = "x"\nbest_priority = 1.5\n', "best_priority 1.5"),
        ('[a]\nkey = "x"\ncolour = "red"\n', "known are key, weight"),
        ('[a]\nkey = "x"\n[b]\nkey = "x"\n', "have the same key"),
        ("[a\n", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_keys_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(KeysError, match=said):
        load_tenants((), written(tmp_path, text))


def test_keys_are_asked_for(keyed: Server) -> None:
    server = keyed
    assert server.client("sk-acme").chat.completions.create(model="built-in", messages=HELLO, max_tokens=2).choices
    for key in ("sk-other", "sk-acm", ""):
        with pytest.raises(openai.AuthenticationError if key else openai.APIError):
            server.client(key or " ").chat.completions.create(model="built-in", messages=HELLO)
    assert server.get("/v1/models").status_code == 401
    assert server.get("/health").status_code == 200, "a health check needs no key"
    assert not any("sk-" in line for line in server.log)


def test_a_tenant_has_no_more_streams_than_it_may(keyed: Server) -> None:
    server = keyed
    body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    client = httpx.Client(timeout=60, headers={"Authorization": "Bearer sk-acme"})
    opened = [
        client.send(client.build_request("POST", server.url + "/v1/completions", json=body), stream=True)
        for _ in range(2)
    ]
    with pytest.raises(openai.RateLimitError, match="'acme' are in flight, and its maximum is 2"):
        server.client("sk-acme").completions.create(model="built-in", prompt="x")
    assert server.client("sk-umbrella").completions.create(model="built-in", prompt="x", max_tokens=1).choices
    for one in opened:
        one.close()
    again = {"prompt": "x", "max_tokens": 1}
    headers = {"Authorization": "Bearer sk-acme"}
    assert server.settled(lambda: server.post("/v1/completions", again, headers=headers).status_code == 200)


def test_isolated_tenants_do_not_see_each_others_prefixes(
    keyed: Server, start: Callable[..., Server], keys_file: Path
) -> None:
    """Tenants are isolated by default where there are several."""
    prompt = "A long and private prompt. " * 10

    def cached(server: Server, key: str, **extra: Any) -> int:
        answer = server.client(key).completions.create(
            model="built-in", prompt=prompt, max_tokens=1, extra_body=extra or None
        )
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    shared = start("--api-keys-file", str(keys_file), "--share-prefixes")
    assert cached(shared, "sk-acme") == 0 and cached(shared, "sk-umbrella") > 0
    assert any("All 2 tenants share cached prefixes" in line for line in shared.log)
    assert cached(keyed, "sk-acme") == 0 and cached(keyed, "sk-umbrella") == 0
    assert cached(keyed, "sk-acme") > 0
    # No salt that a tenant chooses is another's.
    assert cached(keyed, "sk-umbrella", cache_salt="4:acme:") == 0


def test_prefixes_are_isolated_where_there_are_several_tenants() -> None:
    by_itself, shared = ServerSettings(), ServerSettings(isolate_tenants=False)
    assert [by_itself.for_tenants(number).isolate_tenants for number in (1, 2)] == [False, True]
    assert shared.for_tenants(2).isolate_tenants is False


def test_a_tenant_has_no_better_priority_than_it_may(start: Callable[..., Server], tmp_path: Path) -> None:
    keys = written(tmp_path, '[free]\nkey = "sk-free"\nbest_priority = 5\n[paid]\nkey = "sk-paid"\n')
    record = tmp_path / "record.jsonl"
    server = start("--api-keys-file", str(keys), "--policy", "priority", "--record", str(record))

    def answer(key: str, **extra: Any) -> httpx.Response:
        body = {"prompt": "Once", "max_tokens": 1, **extra}
        return server.post("/v1/completions", body, headers={"Authorization": f"Bearer {key}"})

    refused = answer("sk-free", priority=4)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority"
    assert refused.json()["error"]["message"].startswith("priority is 4, and requests of 'free' may have 5 or a higher")
    assert [answer("sk-free", priority=5).status_code, answer("sk-free").status_code] == [200, 200]
    assert answer("sk-paid", priority=-1000).status_code == 200
    server.stop()
    given = [one.request.priority for one in of_kind(list(read_records(record)), "request")]
    assert given == [5, 5, -1000], "without a priority a request has the best that it may"
