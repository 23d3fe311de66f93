"""The one browser of a machine: started when it is first needed, ended when nobody has for a while, never in the way.

One caller at a time. A browser that has ended, by a crash or by an owner of the machine, is started again by the next
`open`; what was asked of it then fails and says so.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from warren_guest.accounts import Account
from warren_guest.browser import launch
from warren_guest.browser.page import Page, View
from warren_guest.browser.pipe import CallError, GoneError, Json, Pipe
from warren_guest.errors import RefusedError
from warren_guest.processes import Process, Processes, Start
from warren_guest.spawn import Program

QUIET_S = 600.0
# A machine without hardware for it takes most of a minute to start a browser.
_START_S = 180.0
# What is not waiting for a page: finding out what it shows, and taking its picture.
_SHOW_S = 60.0
_ALIVE_S = 5.0
_ENDING_S = 5.0

T = TypeVar("T")
Act = Callable[[Page], Awaitable[Json]]


class Means(Protocol):
    """What a browser needs of the guest."""

    processes: Processes

    async def in_thread(self, function: Callable[..., T], *args: object) -> T: ...
    def environment(self, account: Account, requested: dict[str, str], *, pty: bool) -> dict[str, str]: ...


@dataclass(slots=True)
class _Running:
    process: Process
    pipe: Pipe
    profile: str
    target: str = ""
    session: str = ""
    page: Page | None = None


class Browser:
    """Lives on the loop. Raises `RefusedError` and nothing else."""

    def __init__(
        self, means: Means, account: Callable[[], Account], trust: launch.Trust | None, *, quiet_s: float = QUIET_S
    ) -> None:
        self._means = means
        self._account = account
        self._trust = trust
        self._quiet_s = quiet_s
        self._turn = asyncio.Lock()
        self._running: _Running | None = None
        self._starting: asyncio.Task[_Running] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    async def open(self, url: str, view: View, limit_s: float) -> Json:
        """Show `url`. Raises `browser_missing`, `page_failed`, `browser_timeout`."""
        async with self._op(limit_s + _START_S):
            try:
                return await self._opened(url, view, limit_s)
            except GoneError:  # what it was opened in may have been at its end already: once more, in a new one
                return await self._opened(url, view, limit_s)

    async def _opened(self, url: str, view: View, limit_s: float) -> Json:
        page = await self._page()
        await page.look_at(view)
        is_loaded = await page.go(url, limit_s)
        return {**await page.shown(), "loaded": is_loaded}

    async def act(self, act: Act, limit_s: float) -> Json:
        """Do something to the page that is open. Raises `no_page`, and what `act` does."""
        async with self._op(limit_s):
            running = self._running
            if running is None or running.page is None or running.page.is_gone:
                raise RefusedError("no_page", "no page is open; the browser was closed, or its page has crashed")
            give_up = asyncio.get_running_loop().time() + limit_s
            told = await act(running.page)
            is_loaded = await running.page.settle(give_up)
            return {**told, **await running.page.shown(), "loaded": is_loaded}

    async def close(self) -> None:
        """End the browser, if there is one, and wait until it is gone."""
        async with self._turn:
            if self._starting is not None:
                await asyncio.wait({self._starting})
            if self._running is not None:
                self._drop(self._running)
            if self._ending:
                await asyncio.wait(set(self._ending))

    @contextlib.asynccontextmanager
    async def _op(self, limit_s: float) -> AsyncIterator[None]:
        """One caller's turn. What goes wrong in it becomes a refusal."""
        async with self._turn:
            self._rest()
            try:
                async with asyncio.timeout(limit_s + _SHOW_S):
                    yield
            except TimeoutError:
                await self._end_if_stuck()
                raise RefusedError("browser_timeout", f"the browser was not done within {limit_s:g} s") from None
            except (GoneError, CallError) as exc:
                raise RefusedError("page_failed", str(exc)) from exc
            finally:
                self._means.processes.note_activity()
                self._rest(self._quiet_s)

    def _rest(self, quiet_s: float | None = None) -> None:
        """End the browser in `quiet_s`, or not for now."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if quiet_s is None else loop.call_later(quiet_s, self._on_quiet)

    def _on_quiet(self) -> None:
        if self._running is not None and not self._turn.locked():
            self._drop(self._running)

    async def _end_if_stuck(self) -> None:
        """A page that does not even answer this one will answer no other: it takes its browser with it."""
        running = self._running
        if running is None:
            return
        try:
            async with asyncio.timeout(_ALIVE_S):
                await running.pipe.call("Runtime.evaluate", running.session, expression="1")
        except (TimeoutError, GoneError, CallError):
            self._drop(running)

    # One browser's life.

    async def _page(self) -> Page:
        """The page, in a browser that was started now if there is none."""
        running = self._running or await self._started()
        if running.page is None or running.page.is_gone:
            running.page = await self._new_page(running)
        return running.page

    async def _started(self) -> _Running:
        """Start the browser. If the caller leaves it is started none the less, for the next one."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
            self._starting.add_done_callback(self._on_started)
        return await asyncio.shield(self._starting)

    def _on_started(self, task: asyncio.Task[_Running]) -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # seen, if whoever would have been told has left

    async def _start(self) -> _Running:
        account = self._account()
        program = await self._means.in_thread(launch.find_browser)
        if self._trust is not None:
            await self._means.in_thread(launch.write_policy, self._trust)
        profile = await self._means.in_thread(launch.make_profile, account)
        try:
            running = await self._spawn(program, profile, account)
        except BaseException:
            await self._means.in_thread(launch.remove_profile, profile)
            raise
        self._running = running
        return running

    async def _spawn(self, program: str, profile: str, account: Account) -> _Running:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as on_failure:
            its_input, commands = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, its_input)
            on_failure.callback(os.close, commands)
            answers, its_output = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, its_output)
            on_failure.callback(os.close, answers)
            start = Start(
                Program(
                    cmd=program,
                    args=launch.flags(profile, account),
                    env=self._means.environment(account, {"HOME": profile}, pty=False),
                    cwd="/",
                    account=account,
                    # No program that a page could bring it to start gains the rights of another user.
                    no_new_privs=True,
                    fds={3: its_input, 4: its_output},
                )
            )
            process, reader = await self._means.processes.start(start, quiet=True)
            reader.detach()
            on_failure.pop_all()
        pipe = Pipe(commands, answers, self._on_event, lambda: self._on_end(process))
        return _Running(process, pipe, profile)

    async def _new_page(self, running: _Running) -> Page:
        call = running.pipe.call
        if running.page is None:
            await call("Target.setDiscoverTargets", discover=True)
            await call("Browser.setDownloadBehavior", behavior="deny")
        before, made = running.target, await call("Target.createTarget", url="about:blank")
        running.target = str(made.get("targetId"))
        attached = await call("Target.attachToTarget", targetId=running.target, flatten=True)
        running.session = str(attached.get("sessionId"))
        page = running.page = Page(running.pipe, running.session, running.target)
        try:
            if before:
                await self._closed(running.pipe, before)
            await page.prepare()
        except BaseException:
            page.is_gone = True  # half prepared is not prepared; the next caller gets another one
            raise
        return page

    def _on_event(self, method: str, session: str, params: Json) -> None:
        running = self._running
        if running is None or running.page is None:
            return
        is_detached = method == "Target.detachedFromTarget" and params.get("sessionId") == running.session
        if is_detached or session == running.session:
            running.page.on_event(method, params)
        elif method == "Target.targetCreated":
            self._close_popup(running, params.get("targetInfo"))

    def _close_popup(self, running: _Running, told: object) -> None:
        """There is one page. One that it opened beside itself would be seen by nobody."""
        if isinstance(told, dict) and told.get("type") == "page" and told.get("openerId") == running.target:
            self._keep(self._closed(running.pipe, str(told.get("targetId"))))

    async def _closed(self, pipe: Pipe, target: str) -> None:
        with contextlib.suppress(CallError, GoneError):
            await pipe.call("Target.closeTarget", targetId=target)

    def _on_end(self, process: Process) -> None:
        if self._running is not None and self._running.process is process:
            self._drop(self._running)

    def _drop(self, running: _Running) -> None:
        """From now on there is no browser; what is left of this one goes soon."""
        if self._running is running:
            self._running = None
            self._keep(self._end(running))

    def _keep(self, work: Awaitable[None]) -> None:
        async def do() -> None:
            await work

        task = asyncio.get_running_loop().create_task(do())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, running: _Running) -> None:
        running.pipe.close()
        running.process.kill()
        give_up = asyncio.get_running_loop().time() + _ENDING_S
        while not running.process.is_ended and (left := give_up - asyncio.get_running_loop().time()) > 0:
            await running.process.output.bell.wait(left)
        await self._means.in_thread(launch.remove_profile, running.profile)
