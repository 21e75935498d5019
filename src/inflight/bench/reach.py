"""Whether anybody is there to be measured: asked before a run, so that a wrong address is one sentence and not a
thousand failed requests.

Knows /v1/models and /health; sends no work.
"""

from __future__ import annotations

import asyncio
import json

import aiohttp

from inflight.bench.answer import message, shown
from inflight.bench.client_types import BenchError, Target
from inflight.bench.http_client import open_session, refusal


def reachable(target: Target) -> tuple[str, ...]:
    """Names of the models that the server offers; empty where it does not list them but says that it is well.

    Raises BenchError within about `connect_timeout_s`, with a sentence, where nobody answers, a key is asked for, or
    what answers is not an OpenAI-compatible server.
    """
    return asyncio.run(_reach(target))


async def _reach(target: Target) -> tuple[str, ...]:
    base = target.url.rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise BenchError(f"{target.url!r} is no address of a server; it looks like http://127.0.0.1:8000.")
    async with open_session(target) as session:
        status, body = await _get(session, target, f"{base}/v1/models")
        if status == 404:
            status, _ = await _get(session, target, f"{base}/health")
            if status == 200:
                return ()
            raise BenchError(
                f"{base} answers, but with HTTP 404 to /v1/models and {status} to /health: no OpenAI-compatible server "
                "is there. The address is to be without /v1."
            )
    if status in (401, 403):
        raise BenchError(
            f"{base} wants a key (HTTP {status}: {_said(body)}). Give it with --api-key, or in OPENAI_API_KEY."
        )
    if status != 200:
        raise BenchError(f"{base} is there but not ready: HTTP {status} to /v1/models ({_said(body)}).")
    return _names(base, body)


async def _get(session: aiohttp.ClientSession, target: Target, url: str) -> tuple[int, bytes]:
    patience = aiohttp.ClientTimeout(total=target.connect_timeout_s)
    try:
        async with session.get(url, timeout=patience, allow_redirects=False) as response:
            return response.status, await response.read()
    except aiohttp.InvalidURL:
        raise BenchError(f"{target.url!r} is no address of a server; it looks like http://127.0.0.1:8000.") from None
    except TimeoutError:
        raise BenchError(
            f"{url} did not answer within {target.connect_timeout_s:g} s. Start it (ours: inflight serve), or mend the "
            "address."
        ) from None
    except aiohttp.ClientConnectorError as problem:
        raise BenchError(
            f"Nobody is at {target.url}: {refusal(problem)}. Start it (ours: inflight serve), or mend the address."
        ) from None
    except aiohttp.ClientResponseError as problem:
        raise BenchError(f"What is at {target.url} does not speak HTTP: {problem.message}") from None
    except (aiohttp.ClientError, OSError) as problem:
        raise BenchError(f"{url} gave no answer: {problem or type(problem).__name__}.") from None


def _names(base: str, body: bytes) -> tuple[str, ...]:
    try:
        return tuple(str(model["id"]) for model in json.loads(body)["data"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BenchError(
            f"{base}/v1/models answers with what is no list of models: {shown(body)} An OpenAI-compatible server is "
            "needed."
        ) from None


def _said(body: bytes) -> str:
    try:
        return message(json.loads(body))
    except (ValueError, AttributeError, RecursionError):
        return shown(body)
