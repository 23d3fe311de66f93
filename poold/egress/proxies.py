"""The proxies of this host, from poold's side: started, told what to allow, listened to, started again, ended.

A proxy outlives poold: what it allows goes on being allowed, and what it has to tell waits until somebody listens.
One that ends is started again under the same rules, for as long as its machine is there. Until then its guest
reaches nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any

from contract.egress import Open, Row, Waiting
from contract.errors import WarrenError
from poold import processes
from poold.egress import leftovers
from poold.egress.channel import VERSION, Channel, Message
from poold.egress.forks import Zygote, user_of
from poold.egress.policy import Policy
from poold.egress.traces import end_all_of, listening, name_of
from poold.errors import NetError
from poold.lifetimes import finish
from poold.slots import ProxySockets, Slot

log = logging.getLogger("poold.egress")

HELLO_LIMIT_S = 20.0  # on a busy host
RULE_LIMIT_S = 10.0
END_LIMIT_S = 2.0  # to send what is left
AGAIN_AFTER_S = 0.05
AGAIN_AT_MOST_S = 5.0
WELL_S = 10.0  # one that has lived for so long does not end because of how it began
WRITE_AGAIN_S = 1.0  # what could not be written down, on a full disk for example
# More than a proxy ever has. One that its guest has taken over must not fill our memory.
MAX_UNWRITTEN = 50_000
MAX_OPENS = 20_000
MAX_NUMBER = 1 << 53

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

    def __init__(self, home: "Proxies", slot: Slot, sandbox: str | None = None) -> None:
        self._home = home
        self.slot = slot
        self.opens: dict[int, Open] = {}
        self.sandbox = sandbox
        self._policy = Policy()
        self._number = 0  # of the last rule
        self._channel: Channel | None = None
        self._pid = 0
        self._listening: set[asyncio.Task[None]] = set()  # one that listens, one that has rows written down
        self._mending: set[asyncio.Task[None]] = set()  # who tries to start another
        self._unwritten = 0  # rows
        self._is_ending = False
        self._began = 0.0
        self._again_s = 0.0  # how long to wait before another is started; grows while they end at once

    async def rule(self, sandbox: str | None, policy: Policy) -> None:
        """From now on the guest is `sandbox`'s, and reaches what `policy` allows. It is in force when this returns.

        If the proxy cannot be told, it is started again, with this policy. If that fails, too, this raises: the guest
        reaches nothing then, until another try of our own succeeds.
        """
        self.sandbox, self._policy = sandbox, policy
        channel = self._channel
        try:
            await self._tell_rule()
        except NetError as error:
            log.error("a proxy cannot be told", extra={"slot": self.slot.number, "why": str(error)})
            try:
                await self._replace(channel)
            except WarrenError:
                self._spawn(self._mending, self._mend(None))
                raise

    async def end(self) -> None:
        """It is gone, with its connections. Succeeds if it was."""
        self._is_ending = True
        await finish(self._end())

    async def _tell_rule(self) -> None:
        self._number += 1
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
        """Start a process, and listen to it. If this raises or is cancelled, there is none. Raises `HostFault`."""
        try:
            await self._start()
        except BaseException:
            await self.end()
            raise

    async def take_over(self) -> bool:
        """Listen to the process that a former daemon started for this slot, if there is one."""
        try:
            await self._connect()
        except NetError as error:
            told = {"slot": self.slot.number, "why": str(error)}
            log.warning("the proxy of a former daemon is not taken over", extra=told)
            return False
        self._listen()
        return True

    async def _start(self) -> None:
        path = self._home.path_of(self.slot)
        sockets = await self._home.sockets_in(self.slot)
        try:
            with listening(path, user_of(self.slot)) as control:
                await self._home.zygote.fork(self.slot, sockets, control)
        finally:
            sockets.close()
        await self._connect()
        self._listen()

    async def _connect(self) -> None:
        """Reach the process by its file, and hear who it is."""
        who = f"the proxy of slot {self.slot.number}"
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                channel = await Channel.open(self._home.path_of(self.slot))
                try:
                    hello = await channel.first()
                except BaseException:
                    channel.close()
                    raise
        except TimeoutError as error:
            raise NetError("reach", who, hint="it says nothing") from error
        except (OSError, ValueError) as error:  # it ended at once, or is none of ours
            raise NetError("reach", who, hint=str(error)) from error
        pid, number = hello.get("pid"), hello.get("number")
        if not self._is_ours(hello) or type(pid) is not int or type(number) is not int or number > MAX_NUMBER:
            channel.close()
            raise NetError("reach", who, hint=f"another answers there: {hello!r:.100}")
        self._pid, self._channel, self.opens = pid, channel, {}
        self._began = asyncio.get_running_loop().time()
        self._number = max(self._number, number)

    def _is_ours(self, hello: Message) -> bool:
        """What a proxy says of itself may come from its guest in the end: only processes of its user are ended."""
        is_known = hello.get("version") == VERSION and hello.get("slot") == self.slot.number
        pid = hello.get("pid")
        is_its_user = type(pid) is int and processes.owner(pid) == user_of(self.slot)
        return is_known and is_its_user and hello.get("sandbox") in (None, self.sandbox)

    def _listen(self) -> None:
        channel = self._channel
        assert channel is not None  # noqa: S101 — `_connect` made it
        rows: Rows = asyncio.Queue()
        self._spawn(self._listening, self._hear(channel, self.opens, rows))
        self._spawn(self._listening, self._write(name_of(self._pid), channel, rows))

    def _spawn(self, among: "set[asyncio.Task[None]]", work: Coroutine[Any, Any, None]) -> None:
        task = self._home.spawn(work)
        among.add(task)
        task.add_done_callback(among.discard)

    async def _hear(self, channel: Channel, opens: dict[int, Open], rows: Rows) -> None:
        """Take what the proxy tells until it ends; then begin another, unless it was to end."""
        try:
            async for batch in channel.told():
                if told := self._take(batch, opens):
                    rows.put_nowait(told)
        except (OSError, ValueError, NetError) as error:
            log.warning("listening to a proxy failed", extra={"slot": self.slot.number, "why": str(error)})
        channel.close()
        if opens:  # they ended with it, or will: nobody listens any more
            rows.put_nowait([each.cut(self._home.now_ms()) for each in opens.values()])
            opens.clear()
        rows.put_nowait(None)
        if not self._is_ending and self._channel is channel:
            log.error("a proxy ended, starting another", extra={"slot": self.slot.number, "sandbox": self.sandbox})
            self._spawn(self._mending, self._mend(channel))

    def _take(self, batch: list[Message], opens: dict[int, Open]) -> list[Row]:
        """Raises `ValueError` for what no proxy of ours says."""
        rows = []
        for told in batch:
            match told.get("told"):
                case "row":
                    row = Row.read(told)
                    self._must_be_its_own(row.sandbox)
                    rows.append(row)
                    if row.id is not None:
                        opens.pop(row.id, None)
                case "open":
                    opened = Open.read(told)
                    self._must_be_its_own(opened.sandbox)
                    opens[opened.id] = opened
                case "waiting":
                    self._home.told.waits(Waiting.read(told, self.sandbox))
        if self._unwritten + len(rows) > MAX_UNWRITTEN or len(opens) > MAX_OPENS:
            raise ValueError("it tells more than there can be")
        self._unwritten += len(rows)
        return rows

    def _must_be_its_own(self, sandbox: str | None) -> None:
        """A proxy that its guest has taken over must not write into the books of others."""
        if sandbox not in (None, self.sandbox):
            raise ValueError(f"it tells of {sandbox!r:.80}, and is {self.sandbox}'s")

    async def _write(self, name: str, channel: Channel, rows: Rows) -> None:
        """Have rows written down, and tell the proxy. It keeps those that nobody took, and sends only so many more."""
        while (taken := await rows.get()) is not None:
            await self._home.written(name, taken)
            self._unwritten -= sum(row.number > 0 for row in taken)
            with contextlib.suppress(NetError):  # it ended: those rows are not told again
                await channel.say({"do": "taken", "number": taken[-1].number})

    async def _mend(self, broken: Channel | None) -> None:
        """Another takes its place, under the same rules, however long that takes."""
        if asyncio.get_running_loop().time() - self._began > WELL_S:
            self._again_s = 0.0
        while not self._is_ending:
            await asyncio.sleep(self._again_s)
            self._again_s = min(2 * self._again_s or AGAIN_AFTER_S, AGAIN_AT_MOST_S)
            try:
                await self._replace(broken)
            except WarrenError as error:
                log.error("no proxy", extra={"slot": self.slot.number, "why": str(error)})
            else:
                return

    async def _replace(self, broken: Channel | None) -> None:
        """Another process in the place of the one that `broken` led to, under the rules of now.

        If that was replaced meanwhile, its successor is told. If this raises, there is none.
        """
        async with self._home.turn_of(self.slot):
            if self._is_ending:
                return
            try:
                if self._channel is None or self._channel is broken:
                    await finish(self._kill())
                    await self._start()
                await self._tell_rule()
            except WarrenError:
                await finish(self._kill())
                raise

    async def _end(self) -> None:
        with contextlib.suppress(TimeoutError, NetError):
            async with asyncio.timeout(END_LIMIT_S):
                await self._farewell()
        await _over(self._mending)
        async with self._home.turn_of(self.slot):
            await self._kill()
        if self._listening:  # whoever was killed left connections to be written down
            await asyncio.wait(set(self._listening), timeout=END_LIMIT_S)
        await _over(self._listening)
        self._home.path_of(self.slot).unlink(missing_ok=True)

    async def _farewell(self) -> None:
        """Have it end, and what it tells last be written down."""
        if self._channel is not None and self._listening:
            await self._channel.ask({"do": "end"}, lambda told: told.get("told") == "ended")
            if self._listening:
                await asyncio.wait(set(self._listening))

    async def _kill(self) -> None:
        """No process of the slot's proxy is left, also none whose start was cut short."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        await end_all_of(user_of(self.slot))

    def let_go(self) -> None:
        """Listen no longer: it goes on without us."""
        self._is_ending = True
        for task in (*self._listening, *self._mending):
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
        log: Path,
    ) -> None:
        self._folder = folder
        self.sockets_in = sockets_in
        self.told = told
        self.now_ms = now_ms
        self.zygote = Zygote(folder, environ, log)
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

    async def adopt(self, slot: Slot, sandbox: str) -> Proxy:
        """The proxy that a former daemon left in this slot for `sandbox`, or a new one."""
        proxy = Proxy(self, slot, sandbox)
        if not await proxy.take_over():
            await leftovers.end(self.path_of(slot), self.written)  # it may say nothing, or speak another language
            await end_all_of(user_of(slot))  # or have lost its file
            await proxy.begin()
        self._all.add(proxy)
        return proxy

    async def end(self, proxy: Proxy) -> None:
        await proxy.end()
        self._all.discard(proxy)
        self._turns.pop(proxy.slot.number, None)

    async def sweep(self, keep: Collection[int]) -> None:
        """End every proxy that a former daemon left in a slot that is not to be kept, also one that does not answer."""
        await leftovers.sweep(self._folder, keep, self.written)

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

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self._tasks.create_task(work)

    def turn_of(self, slot: Slot) -> asyncio.Lock:
        """One change at a time to the process of a slot."""
        return self._turns.setdefault(slot.number, asyncio.Lock())

    def path_of(self, slot: Slot) -> Path:
        return self._folder / f"{slot.number}.sock"


async def _over(tasks: "set[asyncio.Task[None]]") -> None:
    """None of these goes on."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(set(tasks))
