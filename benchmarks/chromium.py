"""A headless Chromium, driven over its own protocol: pages are opened, asked, clicked, and measured."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--mute-audio",
)


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """console: what it logged, and faults. asked: addresses that it wanted something of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self.console: list[str] = []
        self.asked: list[str] = []
        self._socket = socket
        self._heard: dict[str, list[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            reply = json.loads(message.data)
            if (waiting := self._waiting.pop(reply.get("id", 0), None)) is not None:
                waiting.set_result(reply)
            elif (heard := self._heard.get(reply.get("method", ""))) is not None:
                heard.append(reply["params"])
            elif reply.get("method") == "Runtime.consoleAPICalled":
                self.console.append(" ".join(str(one.get("value", "")) for one in reply["params"]["args"]))
            elif reply.get("method") == "Runtime.exceptionThrown":
                details = reply["params"]["exceptionDetails"]
                self.console.append(details.get("exception", {}).get("description", details["text"]))
            elif reply.get("method") == "Log.entryAdded":
                self.console.append(reply["params"]["entry"]["text"])
            elif reply.get("method") == "Network.requestWillBeSent":
                self.asked.append(reply["params"]["request"]["url"])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Raises AssertionError with what the browser says is wrong."""
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": params}))
        reply = await asyncio.wait_for(waiting, 60)
        assert "error" not in reply, f"{method}: {reply['error']}"
        result: dict[str, Any] = reply["result"]
        return result

    def listen(self, method: str) -> list[dict[str, Any]]:
        """Return the events of that name from now on; the list grows."""
        return self._heard.setdefault(method, [])

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def resize(self, width: int, height: int = 900, scale: int = 1) -> None:
        """scale: pixels of the device to one of the page."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    async def eval(self, expression: str) -> Any:
        """Return the value of an expression; of a JavaScript promise, its result."""
        reply = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    async def until(self, expression: str, seconds: float = 20) -> Any:
        """Its value, as soon as it is true."""
        end = asyncio.get_running_loop().time() + seconds
        while True:
            with contextlib.suppress(AssertionError):
                if value := await self.eval(expression):
                    return value
            shown = self.console[-3:]
            assert asyncio.get_running_loop().time() < end, f"not within {seconds} s: {expression}; console: {shown}"
            await asyncio.sleep(0.05)

    async def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def key(self, key: str, code: str = "", text: str = "") -> None:
        number = {"Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9, "Enter": 13}.get(key, 0)
        held = {"key": key, "code": code or key, "windowsVirtualKeyCode": number}
        await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **held)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **held)

    async def picture(self, path: Path, selector: str = "") -> None:
        """Take a picture of the visible page, or of one element, all of it."""
        asked: dict[str, Any] = {"format": "png"}
        if selector:
            box = await self.eval(
                f"(({{ x, y, width, height }}) => ({{ x, y, width, height, scale: 1 }}))"
                f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
            )
            asked |= {"clip": box, "captureBeyondViewport": True}
        reply = await self.send("Page.captureScreenshot", **asked)
        path.write_bytes(base64.b64decode(reply["data"]))

    async def close(self) -> None:
        await self._socket.close()
        await self._reader


@contextlib.asynccontextmanager
async def opened_page(width: int = 1440, height: int = 900, dark: bool = False, scale: int = 1) -> AsyncIterator[Page]:
    """An empty page of a browser of its own, which ends with it."""
    program = find_chromium()
    assert program is not None, "no Chromium on PATH"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # its helpers may still write
        process = await asyncio.create_subprocess_exec(
            *(program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(folder) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    target = next(one for one in await answer.json() if one["type"] == "page")
                async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await page.send(f"{domain}.enable")
                    await page.resize(width, height, scale)
                    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
                    await page.send("Emulation.setEmulatedMedia", features=[scheme])
                    yield page
                    await page.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _port(file: Path) -> int:
    for _ in range(600):
        if file.exists() and (text := file.read_text().split()):
            return int(text[0])
        await asyncio.sleep(0.05)
    raise AssertionError("the browser did not start within 30 s")
