"""One page: going somewhere, waiting until it is there, acting on it, and what it shows.

What is read of a page is read in a world of ours beside its own scripts, which cannot make our
words mean something else.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from warren_guest.bell import Bell
from warren_guest.browser import scripts
from warren_guest.browser.console import line_of
from warren_guest.browser.pipe import CallError, GoneError, Json, Pipe
from warren_guest.errors import RefusedError
from warren_guest.fields import bad_field

TEXT_BYTES = 64 << 10
TITLE_CHARS = 1000
URL_CHARS = 8192
SCREENSHOT_BYTES = 8 << 20  # of base64
VALUE_BYTES = 1 << 20
_CONSOLE_LINES = 100
# A page longer than this is cut in its picture: nobody reads further, and a bitmap of it is hundreds of megabytes.
_TALLEST = 8192
# What a click or a key does shows within this time, or is not waited for; and so is what a page fetches after its load.
_STIR_S = 0.3
_QUIET_S = 2.0
_ELEMENT_S = 5.0
_POLL_S = 0.1
# A picture that is too large is taken again, smaller.
_SCALES = (1.0, 0.5, 0.25)


@dataclass(frozen=True, slots=True)
class View:
    """How a page is looked at."""

    width: int = 1280
    height: int = 800
    full_page: bool = False


class Page:
    """The page of one session. Lives on the loop; one caller at a time. Raises `RefusedError` and `GoneError`."""

    def __init__(self, pipe: Pipe, session: str, frame: str) -> None:
        self._pipe = pipe
        self._session = session
        self._frame = frame
        self._bell = Bell()
        self._console: deque[str] = deque(maxlen=_CONSOLE_LINES)
        self._view = View()
        self._status: int | None = None
        self._loader = ""
        self._is_loading = False
        self._is_quiet = True
        self.is_gone = False

    async def prepare(self) -> None:
        for method in ("Page.enable", "Runtime.enable", "Network.enable", "Log.enable"):
            await self._call(method)
        await self._call("Page.setLifecycleEventsEnabled", enabled=True)

    async def look_at(self, view: View) -> None:
        self._view = view
        size = {"width": view.width, "height": view.height, "deviceScaleFactor": 1, "mobile": False}
        await self._call("Emulation.setDeviceMetricsOverride", **size)

    # What the browser tells.

    def on_event(self, method: str, params: Json) -> None:
        match method:
            case "Page.frameStartedLoading" if params.get("frameId") == self._frame:
                self._is_loading, self._is_quiet = True, False
            case "Page.frameStoppedLoading" if params.get("frameId") == self._frame:
                self._is_loading = False
            case "Page.frameNavigated":
                self._navigated(params.get("frame"))
            case "Page.lifecycleEvent" if params.get("frameId") == self._frame:
                self._is_quiet = self._is_quiet or params.get("name") == "networkIdle"
            case "Network.responseReceived" if params.get("type") == "Document":
                self._responded(params)
            case "Page.javascriptDialogOpening":
                # Nobody is there to answer, and until somebody does nothing else of the page runs.
                is_leaving = params.get("type") == "beforeunload"
                self._soon(self._pipe.call("Page.handleJavaScriptDialog", self._session, accept=is_leaving))
            case "Inspector.targetCrashed" | "Target.detachedFromTarget":
                self.is_gone = True
                self._pipe.forget(self._session)
            case _:
                if (line := line_of(method, params)) is not None:
                    self._console.append(line)
        self._bell.ring()

    def _navigated(self, frame: object) -> None:
        if isinstance(frame, dict) and frame.get("id") == self._frame and not frame.get("parentId"):
            self._loader = str(frame.get("loaderId"))

    def _responded(self, params: Json) -> None:
        response = params.get("response")
        if params.get("frameId") == self._frame and isinstance(response, dict):
            status = response.get("status")
            self._status = status if isinstance(status, int) else None

    def _soon(self, call: Awaitable[Json]) -> None:
        async def do() -> None:
            with contextlib.suppress(CallError, GoneError):
                await call

        self._answering = asyncio.get_running_loop().create_task(do())

    # What callers ask for.

    async def go(self, url: str, limit_s: float) -> bool:
        """Open `url`. False if it is there, but was still loading something after `limit_s`. Raises `page_failed`."""
        give_up = asyncio.get_running_loop().time() + limit_s
        self._console.clear()
        self._status = None
        try:
            async with asyncio.timeout(limit_s):
                told = await self._call("Page.navigate", url=url)
        except TimeoutError:
            with contextlib.suppress(TimeoutError, CallError):
                async with asyncio.timeout(_STIR_S):
                    await self._call("Page.stopLoading")
            raise RefusedError("browser_timeout", f"{url[:200]} did not answer within {limit_s:g} s") from None
        if error := told.get("errorText"):
            raise RefusedError("page_failed", f"{url[:200]}: {str(error)[:200]}")
        return await self.settle(give_up)

    async def settle(self, give_up: float) -> bool:
        """Wait until what was set off has happened: a page that is loading is loaded, and has fetched what it needs.

        False if it was still loading at `give_up`, in the loop's time.
        """
        await self._until(lambda: self._is_loading, _STIR_S)
        is_loaded = await self._until(lambda: not self._is_loading, give_up - asyncio.get_running_loop().time())
        await self._until(lambda: self._is_quiet, _QUIET_S)
        return is_loaded

    async def click(self, selector: str) -> None:
        point = await self._find(selector, scripts.POINT)
        if not isinstance(point, dict):
            raise RefusedError("no_element", f"{selector[:200]} is not shown, so that it cannot be clicked")
        at = {"x": _number(point.get("x")), "y": _number(point.get("y")), "button": "left", "clickCount": 1}
        await self._call("Input.dispatchMouseEvent", type="mouseMoved", x=at["x"], y=at["y"])
        await self._call("Input.dispatchMouseEvent", type="mousePressed", **at)
        await self._call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    async def type(self, selector: str, text: str, *, submit: bool) -> None:
        if await self._find(selector, scripts.FOCUS) is not True:
            raise RefusedError("no_element", f"{selector[:200]} cannot be typed into")
        await self._call("Input.insertText", text=text)
        if submit:
            key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
            await self._call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
            await self._call("Input.dispatchKeyEvent", type="keyUp", **key)

    async def evaluate(self, script: str, limit_s: float) -> object:
        """The value of `script` in the page's own world, as JSON. Raises `page_failed` with what it threw."""
        asked = {"returnByValue": True, "awaitPromise": True, "userGesture": True, "timeout": limit_s * 1000}
        try:
            async with asyncio.timeout(limit_s):
                told = await self._call("Runtime.evaluate", expression=script, **asked)
        except TimeoutError:
            raise RefusedError("browser_timeout", f"the script was not done within {limit_s:g} s") from None
        if isinstance(thrown := told.get("exceptionDetails"), dict):
            raise RefusedError("page_failed", f"the script failed: {scripts.exception_text(thrown)}")
        return scripts.value_of(told.get("result"), VALUE_BYTES)

    async def shown(self) -> Json:
        """Everything that a caller is told of the page as it is now."""
        facts = await self._read(scripts.FACTS)
        facts = facts if isinstance(facts, dict) else {}
        return {
            "title": str(facts.get("title", ""))[:TITLE_CHARS],
            "url": str(facts.get("url", ""))[:URL_CHARS],
            "text": scripts.cut(str(facts.get("text", "")), TEXT_BYTES),
            "console": list(self._console),
            "status": self._status,
            "screenshot": await self._picture(_number(facts.get("height"))),
        }

    async def _picture(self, height: float) -> str | None:
        view = self._view
        tall = min(max(height, view.height), _TALLEST) if view.full_page else view.height
        for scale in _SCALES:
            clip = {"x": 0, "y": 0, "width": view.width, "height": tall, "scale": scale}
            asked: Json = {"format": "png", "captureBeyondViewport": True, "clip": clip} if view.full_page else {}
            if not view.full_page and scale != 1.0:
                asked = {"clip": clip}
            with contextlib.suppress(CallError):
                picture = (await self._pipe.call("Page.captureScreenshot", self._session, **asked)).get("data")
                if isinstance(picture, str) and len(picture) <= SCREENSHOT_BYTES:
                    return picture
        return None

    # Our own world in the page.

    async def _find(self, selector: str, script: str) -> object:
        """What `script` says of the element, once it is there. Raises `no_element`, and `bad_field` for no selector."""
        give_up = asyncio.get_running_loop().time() + _ELEMENT_S
        while True:
            found = await self._read(script, selector)
            if found == scripts.NO_SELECTOR:
                raise bad_field("selector", f"{ascii(selector)[:60]} is not a CSS selector")
            if found is not None:
                return found
            if asyncio.get_running_loop().time() > give_up:
                raise RefusedError("no_element", f"the page has no {selector[:200]}")
            await asyncio.sleep(_POLL_S)

    async def _read(self, function: str, *arguments: object) -> object:
        """Call a function of ours in a world of its own. None if the page went elsewhere meanwhile."""
        try:
            world = await self._pipe.call("Page.createIsolatedWorld", self._session, frameId=self._frame)
            told = await self._pipe.call(
                "Runtime.callFunctionOn",
                self._session,
                functionDeclaration=function,
                executionContextId=world.get("executionContextId"),
                arguments=[{"value": each} for each in arguments],
                returnByValue=True,
            )
        except CallError:
            return None
        result = told.get("result")
        return result.get("value") if isinstance(result, dict) and "exceptionDetails" not in told else None

    async def _call(self, method: str, **params: object) -> Json:
        try:
            return await self._pipe.call(method, self._session, **params)
        except CallError as exc:
            raise RefusedError("page_failed", f"{method}: {exc}") from exc

    async def _until(self, is_so: Callable[[], bool], limit_s: float) -> bool:
        give_up = asyncio.get_running_loop().time() + limit_s
        while not is_so():
            left = give_up - asyncio.get_running_loop().time()
            if self.is_gone or not self._pipe.is_open:
                raise GoneError("the page has crashed")
            if left <= 0 or not await self._bell.wait(left):
                return is_so()
        return True


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
