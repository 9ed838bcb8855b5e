"""A headless Chromium that is told what to do through a pipe (Chrome DevTools Protocol)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


class Chromium:
    """A browser, open until `close`; its profile is an empty directory."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        its_in, self._out = os.pipe()
        self._in, its_out = os.pipe()
        given = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (its_in, its_out)]
        command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{given[0]} 4>&{given[1]}', "bash", *command],
            pass_fds=given, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (its_in, its_out, *given):
            os.close(end)
        self._read = os.fdopen(self._in, "rb")
        self._rest, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        with suppress(AssertionError, OSError):  # its pipe may close before it answers
            self.tell("Browser.close")
        self._process.wait(60)
        self._read.close()
        os.close(self._out)

    def tell(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """The answer; what else arrives until then is kept in `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def wait(self, method: str, session: str) -> None:
        while not any(each.get("method") == method and each.get("sessionId") == session for each in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._read.read1(1 << 20)
            assert more, "Chromium ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class Tab:
    """A page loaded in a window of so many CSS pixels; `media` is '' or 'print'."""

    def __init__(
        self, browser: Chromium, path: Path, width: int = 1280, height: int = 900, dark: bool = False,
        media: str = "", scripts: bool = True,
    ) -> None:  # fmt: skip
        self.browser = browser
        target = browser.tell("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")
        self.tell("Emulation.setScriptExecutionDisabled", value=not scripts)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.tell("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.tell("Page.navigate", url=path.resolve().as_uri())
        browser.wait("Page.loadEventFired", self.session)

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.tell(method, self.session, **parameters)

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        answer = self.tell("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Return messages of the console, and a note if the page loaded more than itself."""
        found, loads = [], 0
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, told = event["method"], event["params"]
            if method in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                found.append(json.dumps(told)[:500])
            loads += method == "Network.requestWillBeSent"
        return found + [f"{loads} loads instead of the page alone"] * (loads != 1)

    def paper(self, path: Path) -> None:
        told = self.tell("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(told["data"]))
