"""Headless Chromium without a driver: its DevTools protocol over two pipes, one JSON object per zero byte."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)
QUIET_S = 0.1  # without a word from the page: nothing more will come of loading it
TIMEOUT_S = 60.0


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Chromium:
    """One browser with one tab. `events` holds all that the tab reported since the last `open`."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        words = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *words],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._last_id = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result; what the tab reports meanwhile is kept. Raises RuntimeError."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], TIMEOUT_S)[0]:
                raise RuntimeError(f"the browser said nothing for {TIMEOUT_S:g} s")
            read = os.read(self._read, 1 << 20)
            if not read:
                raise RuntimeError("the browser ended")
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return dict(message)

    def open(self, address: str) -> None:
        """Load a page and wait until it is complete and quiet."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()
        while self._buffer or select.select([self._read], [], [], QUIET_S)[0]:
            self._next()

    def run(self, script: str) -> Any:
        """The value of an expression in the page. Raises RuntimeError when it throws."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Addresses that the page asked for, blocked ones included."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Errors in the console: exceptions, policy violations, failed loads."""
        said = []
        for event in self.events:
            what = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                said.append(what["exceptionDetails"]["text"])
            elif event["method"] == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                said.append(what["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning"):
                said.append(str(what["args"]))
        return said

    def resize(self, *, width: int, height: int, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def screenshot(self, path: Path, *, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
