"""A real Chromium without a window, driven over the Chrome DevTools Protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

from tests.eventually import TIMEOUT_S, until

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
)
_ADDRESS = "DevTools listening on "


@dataclass
class BrowserTab:
    """One tab.

    log: messages of the console and errors of the page, among them violations of its policy.
    """

    socket: aiohttp.ClientWebSocketResponse
    session_id: str = ""
    log: list[str] = field(default_factory=list)
    _calls: int = 0
    _replies: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._calls += 1
        number = self._calls
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        session = {"sessionId": self.session_id} if self.session_id else {}
        await self.socket.send_json({"id": number, "method": method, "params": params, **session})
        async with asyncio.timeout(TIMEOUT_S):
            content = await reply
        assert "error" not in content, content
        result: dict[str, Any] = content["result"]
        return result

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, which must be JSON."""
        result = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def load(self, url: str) -> None:
        """Load a page and wait until it is there."""
        await self.call("Page.navigate", url=url)

        async def is_loaded() -> bool:
            state = "[document.readyState, location.href]"
            return bool(await self.evaluate(state) == ["complete", url])

        await until(is_loaded)

    async def until(self, expression: str) -> None:
        """Wait until an expression is true."""

        async def holds() -> bool:
            return bool(await self.evaluate(f"Boolean({expression})"))

        await until(holds)

    async def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Give the page a window, or a phone, of this size."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    async def screenshot(self, width: int, height: int, *, is_dark: bool = False) -> bytes:
        """Return a picture of the top of the page, PNG."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.resize(width, height)
        picture = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(picture["data"])

    async def read(self) -> None:
        """Read what the browser sends until the connection ends."""
        async for message in self.socket:
            content = json.loads(message.data)
            if "id" in content:
                self._replies.pop(content["id"]).set_result(content)
            elif content["method"] == "Log.entryAdded":
                self.log.append(content["params"]["entry"]["text"])
            elif content["method"] == "Runtime.exceptionThrown":
                self.log.append(str(content["params"]["exceptionDetails"]))


@asynccontextmanager
async def open_tab() -> AsyncIterator[BrowserTab]:
    """Start a browser with one tab, and end it."""
    assert CHROMIUM is not None
    with TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *_FLAGS,
            f"--user-data-dir={folder}",
            "about:blank",
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            assert process.stderr is not None
            line = ""
            async with asyncio.timeout(TIMEOUT_S):
                while _ADDRESS not in line:
                    line = (await process.stderr.readline()).decode()
                    assert line, "chromium ended"
            draining = asyncio.create_task(process.stderr.read())
            url = line.partition(_ADDRESS)[2].strip()
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(url, max_msg_size=0) as socket,
            ):
                tab = BrowserTab(socket)
                reading = asyncio.create_task(tab.read())
                target = await tab.call("Target.createTarget", url="about:blank")
                attached = await tab.call(
                    "Target.attachToTarget", targetId=target["targetId"], flatten=True
                )
                tab.session_id = attached["sessionId"]
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
                reading.cancel()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await draining
