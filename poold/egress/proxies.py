"""The proxies of this host, from poold's side: started, told what to allow, listened to, started again, ended.

A proxy outlives poold: what it allows goes on being allowed, and what it has to tell waits until somebody listens.
One that ends is started again under the same rules, for as long as its machine is there. Until then its guest
reaches nothing.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from contract.egress import Open, Row, Waiting
from contract.errors import WarrenError
from poold import processes
from poold.egress.channel import Channel
from poold.egress.forks import UID_OFFSET, Zygote, user_of
from poold.egress.policy import Policy
from poold.errors import NetError
from poold.lifetimes import finish
from poold.slots import ProxySockets, Slot

log = logging.getLogger("poold.egress")

HELLO_LIMIT_S = 20.0  # on a busy host
RULE_LIMIT_S = 20.0
END_LIMIT_S = 2.0  # to send what is left
AGAIN_AFTER_S = 0.05
AGAIN_AT_MOST_S = 5.0
MAX_OPEN = 10_000  # connections of one proxy that are remembered: more than it may have at a time
MAX_UNWRITTEN = 50_000  # rows that were told and are not written down yet: no proxy of ours tells so many
WRITE_AGAIN_S = 1.0  # what could not be written down, on a full disk for example

SocketsIn = Callable[[Slot], Awaitable[ProxySockets]]
Rows = asyncio.Queue[list[Row] | None]  # to be written down; None: there are no more


class Told:
    """Who is told what proxies tell. `wrote` returns when the rows are written down; until then they are kept."""

    async def wrote(self, proxy: str, rows: list[Row]) -> None:
        """Rows of the proxy that is called `proxy`; it may tell them again after a restart of either side."""

    def waits(self, waiting: Waiting) -> None:
        """A connection waits for somebody to allow it."""


class Proxy:
    """The proxy of one machine. It denies everything until it is told something else."""

    def __init__(self, home: "Proxies", slot: Slot) -> None:
        self._home = home
        self.slot = slot
        self.opens: dict[int, Open] = {}
        self.sandbox: str | None = None
        self._whose: set[str | None] = {None}  # all that the machine was; what is told of others is a lie
        self._unwritten = 0  # rows
        self._policy = Policy()
        self._number = 0  # of the last rule
        self._channel: Channel | None = None
        self._pid = 0
        self._tasks: list[asyncio.Task[None]] = []  # one that listens, one that has rows written down
        self._is_ending = False

    async def rule(self, sandbox: str | None, policy: Policy) -> None:
        """From now on the guest is `sandbox`'s, and reaches what `policy` allows. It is in force when this returns.

        If the proxy cannot be told, it is started again, with this policy.
        """
        self.sandbox, self._policy = sandbox, policy
        self._whose.add(sandbox)
        self._number += 1
        try:
            await self._tell_rule()
        except NetError as error:
            log.error("a proxy cannot be told", extra={"slot": self.slot.number, "why": str(error)})
            await self._replace()

    async def end(self) -> None:
        """It is gone, with its connections. Succeeds if it was."""
        self._is_ending = True
        await finish(self._end())

    async def _tell_rule(self) -> None:
        channel, number = self._channel, self._number
        if channel is None:
            raise NetError("reach", f"the proxy of slot {self.slot.number}", hint="it is not there")
        rule = {"do": "rule", "number": number, "sandbox": self.sandbox, "policy": self._policy.view()}
        try:
            async with asyncio.timeout(RULE_LIMIT_S):
                await channel.ask(rule, lambda told: told.get("told") == "ruled" and told.get("number") == number)
        except TimeoutError as error:
            raise NetError("tell", f"the proxy of slot {self.slot.number}", hint="it does not answer") from error

    # How it begins and ends.

    async def begin(self) -> None:
        """Start a process, and listen to it. If this raises or is cancelled, there is none."""
        try:
            await self._start()
        except BaseException:
            await self.end()
            raise

    async def take_over(self, sandbox: str | None) -> bool:
        """Listen to the process that a former daemon started for this slot and `sandbox`, if there is one."""
        self._whose.add(sandbox)
        try:
            await self._connect()
        except NetError:
            return False
        self._listen()
        return True

    async def _start(self) -> None:
        path = self._home.path_of(self.slot)
        sockets = await self._home.sockets_in(self.slot)
        try:
            with _listening(path, user_of(self.slot)) as control:
                self._pid = await self._home.zygote.fork(self.slot, sockets, control)
        finally:
            sockets.close()
        await self._connect()
        self._listen()

    async def _connect(self) -> None:
        """Reach the process by its file, and hear who it is."""
        path = self._home.path_of(self.slot)
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                channel = await Channel.open(path)
                try:
                    hello = await channel.first()
                except BaseException:
                    channel.close()
                    raise
        except TimeoutError as error:
            raise NetError("reach", f"the proxy of slot {self.slot.number}", hint="it says nothing") from error
        except (OSError, ValueError) as error:
            raise NetError("reach", f"the proxy of slot {self.slot.number}", hint=str(error)) from error
        if hello.slot != self.slot.number or not self._is_ours(hello.pid):
            channel.close()
            raise NetError("reach", f"the proxy of slot {self.slot.number}", hint=f"another answers there: {hello}")
        self._pid, self._channel = hello.pid, channel
        self.opens.clear()
        self._number = max(self._number, hello.number)

    def _is_ours(self, pid: int) -> bool:
        """What a proxy says of itself may come from its guest in the end: only processes of its user are ended."""
        return processes.owner(pid) == user_of(self.slot)

    def _listen(self) -> None:
        channel = self._channel
        assert channel is not None  # noqa: S101 — `_connect` made it
        name = f"{self._pid}.{processes.started(self._pid)}"
        rows: Rows = asyncio.Queue()
        self._unwritten = 0
        self._tasks = [
            self._home.spawn(self._hear(name, channel, rows)),
            self._home.spawn(self._write(name, channel, rows)),
        ]

    async def _hear(self, name: str, channel: Channel, rows: Rows) -> None:
        """Take what the proxy tells until it ends; then begin another, unless it was to end."""
        try:
            async for batch in channel.told():
                if told := self._take(batch):
                    self._unwritten += len(told)
                    rows.put_nowait(told)
        except (OSError, ValueError, NetError) as error:
            log.warning("listening to a proxy failed", extra={"slot": self.slot.number, "why": str(error)})
        rows.put_nowait(None)
        if not self._is_ending and self._channel is channel:
            await self._again(name)

    def _take(self, batch: list[Mapping[str, Any]]) -> list[Row]:
        """Raises `ValueError` for what no proxy of ours tells: whoever tells that has a guest's words in its mouth."""
        rows = []
        for told in batch:
            match told.get("told"):
                case "row":
                    row = Row.read(told)
                    self._check_whose(row)
                    rows.append(row)
                    if row.id is not None:
                        self.opens.pop(row.id, None)
                case "open":
                    opened = Open.read(told)
                    self._check_whose(opened)
                    self.opens[opened.id] = opened
                    if len(self.opens) > MAX_OPEN:  # their rows are late, or never come
                        del self.opens[next(iter(self.opens))]
                case "waiting":
                    self._home.told.waits(Waiting.read(told, self.sandbox))
        if self._unwritten + len(rows) > MAX_UNWRITTEN:
            raise ValueError("it tells more than it can have seen")
        return rows

    def _check_whose(self, told: Row | Open) -> None:
        if told.sandbox not in self._whose:
            raise ValueError("it tells of somebody whose machine this never was")

    async def _write(self, name: str, channel: Channel, rows: Rows) -> None:
        """Have rows written down, and tell the proxy. It keeps those that nobody took, and sends only so many more."""
        while (taken := await rows.get()) is not None:
            await self._home.written(name, taken)
            self._unwritten -= len(taken)
            with contextlib.suppress(NetError):  # it ended: those rows are not told again
                await channel.say({"do": "taken", "number": taken[-1].number})

    async def _again(self, name: str) -> None:
        """It ended, and nobody asked it to: another takes its place, under the same rules."""
        log.error("a proxy ended, starting another", extra={"slot": self.slot.number, "sandbox": self.sandbox})
        cut = [each.cut(self._home.now_ms()) for each in self.opens.values()]
        self.opens.clear()
        if cut:
            await self._home.written(name, cut)
        wait_s = AGAIN_AFTER_S
        while not self._is_ending:
            try:
                await self._replace()
            except WarrenError as error:  # also one that cannot be killed
                log.error("no proxy", extra={"slot": self.slot.number, "why": str(error)})
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, AGAIN_AT_MOST_S)
            else:
                return

    async def _replace(self) -> None:
        """Another process in the place of the one that is there, if one is, under the same rules."""
        async with self._home.turn_of(self.slot):
            if self._is_ending:
                return
            await finish(self._kill())
            await self._start()
            self._number += 1
            await self._tell_rule()

    async def _end(self) -> None:
        with contextlib.suppress(TimeoutError, NetError, OSError):
            async with asyncio.timeout(END_LIMIT_S):
                await self._farewell()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        async with self._home.turn_of(self.slot):
            await self._kill()
        self._home.path_of(self.slot).unlink(missing_ok=True)

    async def _farewell(self) -> None:
        """Have it end, and what it tells last be written down."""
        if self._channel is not None and self._tasks:
            await self._channel.ask({"do": "end"}, lambda told: told.get("told") == "ended")
            await asyncio.wait(self._tasks)

    async def _kill(self) -> None:
        """No process of the slot's proxy is left, also none whose start was cut short."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        await _end_all_of(user_of(self.slot))

    def let_go(self) -> None:
        """Listen no longer: it goes on without us."""
        self._is_ending = True
        for task in self._tasks:
            task.cancel()
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class Proxies:
    """The proxies of all machines of this host. Open as a block: after it they run on, and nobody listens to them."""

    def __init__(
        self,
        folder: Path,
        sockets_in: SocketsIn,
        *,
        told: Told,
        now_ms: Callable[[], int],
        environ: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self.sockets_in = sockets_in
        self.told = told
        self.now_ms = now_ms
        self.zygote = Zygote(folder, environ)
        self._tasks = asyncio.TaskGroup()
        self._turns: dict[int, asyncio.Lock] = {}
        self._all: set[Proxy] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Proxies"]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            async with self._tasks:
                try:
                    yield self
                finally:
                    for proxy in self._all:
                        proxy.let_go()
        finally:
            await finish(asyncio.to_thread(self._close))

    def _close(self) -> None:
        self.zygote.close()
        with contextlib.suppress(OSError):  # where proxies go on, their files do
            self._folder.rmdir()

    async def start(self, slot: Slot) -> Proxy:
        """A new proxy for a slot that has none, which denies everything."""
        proxy = Proxy(self, slot)
        await proxy.begin()
        self._all.add(proxy)
        return proxy

    async def adopt(self, slot: Slot, sandbox: str | None = None) -> Proxy:
        """The proxy that a former daemon left in this slot for `sandbox`, or a new one."""
        proxy = Proxy(self, slot)
        if not await proxy.take_over(sandbox):
            await self._end_left(self.path_of(slot))  # it may be there and say nothing, or speak another language
            await proxy.begin()
        self._all.add(proxy)
        return proxy

    async def end(self, proxy: Proxy) -> None:
        await proxy.end()
        self._all.discard(proxy)
        self._turns.pop(proxy.slot.number, None)

    async def sweep(self, keep: Collection[int]) -> None:
        """End every proxy that a former daemon left in a slot that is not to be kept, also one that does not answer."""
        for path in await asyncio.to_thread(lambda: sorted(self._folder.glob("*.sock"))):
            if path.stem.isdecimal() and int(path.stem) not in keep:
                await self._end_left(path)

    async def _end_left(self, path: Path) -> None:
        try:
            async with asyncio.timeout(END_LIMIT_S):
                with contextlib.closing(await Channel.open(path)) as channel:
                    await channel.farewell()
        except (TimeoutError, OSError, NetError, ValueError) as error:
            log.info("a proxy of a former daemon says nothing", extra={"path": str(path), "why": str(error)})
        with contextlib.suppress(FileNotFoundError):
            await _end_all_of((await asyncio.to_thread(path.stat)).st_uid)
        await asyncio.to_thread(path.unlink, missing_ok=True)

    async def written(self, name: str, rows: list[Row]) -> None:
        """Return when the rows are written down, however long that takes."""
        while True:
            try:
                await self.told.wrote(name, rows)
            except WarrenError as error:
                log.error("connections cannot be written down", extra={"rows": len(rows), "why": str(error)})
                await asyncio.sleep(WRITE_AGAIN_S)
            else:
                return

    def spawn(self, work: Any) -> "asyncio.Task[None]":
        return self._tasks.create_task(work)

    def turn_of(self, slot: Slot) -> asyncio.Lock:
        """One change at a time to the process of a slot."""
        return self._turns.setdefault(slot.number, asyncio.Lock())

    def path_of(self, slot: Slot) -> Path:
        return self._folder / f"{slot.number}.sock"


@contextlib.contextmanager
def _listening(path: Path, uid: int) -> Iterator[socket.socket]:
    """The file by which a proxy is reached. It is that of the proxy's user, which says later whose it was."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as control:
        control.bind(str(path))
        os.chown(path, uid, uid)
        control.listen(4)
        yield control


async def _end_all_of(uid: int) -> None:
    """Nobody runs as `uid` any more, if that is a proxy's user: also those that began while others were ended."""
    ended: set[int] = set()
    while uid >= UID_OFFSET and (pids := set(await asyncio.to_thread(processes.of_user, uid)) - ended):
        for pid in pids:
            await processes.end(pid)
        ended |= pids
