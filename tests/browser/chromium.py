"""Headless Chromium, driven over its own protocol: two dozen lines of JSON need no driver of their own."""

import contextlib
import itertools
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

LIMIT_S = 60.0
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # it runs as root here, and sees our own pages only
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-port=0",
)


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.ask("Page.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """One command and its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._socket.recv(LIMIT_S))
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What an expression is on the page; promises are waited for."""
        told = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true on the page."""
        return wait_for(lambda: self._value_or_none(expression), expression)

    def _value_or_none(self, expression: str) -> Any:
        told = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return None if "exceptionDetails" in told else told["result"].get("value")


@contextlib.contextmanager
def open_browser(folder: Path) -> Iterator[Page]:
    """A browser that knows nothing yet, during the block. It downloads into `folder`/downloads."""
    profile, downloads = folder / "profile", folder / "downloads"
    downloads.mkdir(parents=True)
    argv = ["chromium", *ARGUMENTS, f"--user-data-dir={profile}", "about:blank"]
    with tempfile.TemporaryDirectory(prefix="warren-", ignore_cleanup_errors=True) as scratch:  # short: it has a socket
        with (folder / "chromium.log").open("wb") as log:
            environment = {**os.environ, "TMPDIR": scratch}
            process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, env=environment)
        yield from _page(process, profile, downloads)


def _page(process: "subprocess.Popen[bytes]", profile: Path, downloads: Path) -> Iterator[Page]:
    """The browser's one page. After it, the browser is gone."""
    try:
        active = profile / "DevToolsActivePort"
        port = wait_for(lambda: active.exists() and active.read_text().split("\n")[0], "the browser")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=LIMIT_S) as told:
            tab = next(each for each in json.load(told) if each["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], proxy=None, max_size=None) as socket:
            page = Page(socket)
            page.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
            yield page
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def wait_for(find: Callable[[], Any], what: str) -> Any:
    """Wait until `find` finds something."""
    give_up = time.monotonic() + LIMIT_S
    while not (found := find()):
        assert time.monotonic() < give_up, f"{what} did not come about within {LIMIT_S:g} s"
        time.sleep(0.05)
    return found
