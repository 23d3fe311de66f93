"""The guest itself: its parts, joined. What routes ask for and the two ways of starting agree on."""

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from warren_guest.accounts import Account, Accounts
from warren_guest.browser.browser import Browser
from warren_guest.browser.launch import Trust
from warren_guest.checkpoints import Checkpoints
from warren_guest.errors import RefusedError
from warren_guest.events import Events
from warren_guest.git.guard import Verdict
from warren_guest.git.places import Places
from warren_guest.git.service import Git, Surroundings
from warren_guest.groups import Groups
from warren_guest.identity import Identity, Machine
from warren_guest.layers import Layer
from warren_guest.logs import Ring
from warren_guest.output import Reader
from warren_guest.processes import Process, Processes, Start
from warren_guest.reaper import Reaper
from warren_guest.run_outputs import Outputs
from warren_guest.runs import Runs
from warren_guest.server import Connection
from warren_guest.sessions import kill_descendants
from warren_guest.spawn import Program, Shield

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TERM = "xterm-256color"
# Requests that may be inside the kernel at once, each perhaps waiting for a slow or hung file system.
_THREADS = 32
WATCH_LIMIT = 100
_ENDING_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Config:
    """What differs between a machine and a developer's computer."""

    machine: Machine
    user: str
    workspace: str = "/workspace"
    shield: Callable[[], Shield] = field(default=contextlib.nullcontext)
    git: Places = field(default_factory=Places)
    outputs: str = "/var/lib/warren/outputs"
    # What of an agent's session is kept with its workspace: its home's, unless that is a developer's own.
    session_home: str | None = None
    # How the browser learns whom the machine trusts; a developer's own browser is left as it is.
    browser_trust: Trust | None = None
    # Where all that a run started is found, however it hides.
    groups: Groups | None = None
    # The upper folder of the machine's overlay: all that is not as in its image.
    upper: str | None = None


class Guest:
    """Everything that the guest knows. Lives on the loop; `in_thread` is for what may block."""

    def __init__(self, config: Config, log: Ring) -> None:
        self.log = log
        self.workspace = config.workspace
        self.accounts = Accounts(config.user)
        self.events = Events()
        self.identity = Identity(config.machine)
        self.watches = 0
        self.tunnels = 0
        self.connections: set[Connection] = set()
        self._reaper = Reaper()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="files")
        self.processes = Processes(self._reaper, self._threads, config.shield, self.events.emit)
        env = functools.partial(self.environment, requested={}, pty=False)
        self.git = Git(config.git, Surroundings(self.processes, self.accounts, self.in_thread, env))
        outputs = Outputs(config.outputs)
        own = {} if config.session_home is None else {"WARREN_MOCK_HOME": config.session_home}
        self.runs = Runs(self.processes, lambda text: self.in_thread(outputs.keep, text), config.groups, own)
        self.checkpoints = Checkpoints(f"{os.path.dirname(config.outputs)}/restored")  # noqa: PTH120
        self._session_home = config.session_home
        self._upper = config.upper
        # While nothing may be started or changed: the environment that every machine of the host has.
        self.frozen: dict[str, str] | None = None
        self.git.guard.ask = self._ask_host
        self.browser = Browser(self, lambda: self.accounts.find(None), config.browser_trust)

    def open(self) -> None:
        self._reaper.open()

    def hang_up_but(self, kept: Connection) -> None:
        """End every other connection. After a restore their clients are gone and would never say so."""
        for connection in self.connections - {kept}:
            connection.hang_up()

    async def close(self) -> None:
        """End everything that was started, and wait until it is gone; but not for what the kernel cannot kill."""
        await self.runs.close()
        await self.git.close()
        await self.browser.close()
        await self.processes.close()
        give_up = time.monotonic() + _ENDING_S
        kill_descendants()
        while self._reaper.reap() and time.monotonic() < give_up:
            await asyncio.sleep(0.005)
            kill_descendants()
        self._reaper.close()
        self._threads.shutdown(wait=False)

    async def in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Call `function` where it may block. Cancelled, it is still waited for: it uses what the caller will close."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({future})
            if not future.cancelled():
                future.exception()  # seen; nobody is left to be told
            raise

    async def _ask_host(self, event: str, facts: Mapping[str, object]) -> Verdict:
        """What the host says to an agent that wants to push."""
        try:
            answer = await self.runs.ask(event, kind="push", **facts)
        except RefusedError as error:
            return Verdict(False, error.message)
        return Verdict(answer.kind == "approve", answer.text)

    def environment(self, account: Account, requested: dict[str, str], *, pty: bool) -> dict[str, str]:
        """What a process of `account` is started with. The last one wins.

        Where the machine is a developer's own computer, its user has a home of its own: what a shell reads at its start
        is not the developer's, and what it leaves there if it is killed is in nobody's way. Nor is a repository that
        the workspace happens to lie in: git looks for none above the workspace.
        """
        is_guests = account.name == self.accounts.find(None).name
        above = {} if self._session_home is None else {"GIT_CEILING_DIRECTORIES": os.path.dirname(self.workspace)}  # noqa: PTH120
        return {
            "PATH": PATH,
            "HOME": self.session_home if is_guests else account.home,
            "USER": account.name,
            "LOGNAME": account.name,
            "SHELL": account.shell,
            "LANG": "C.UTF-8",
            **above,
            **({"TERM": TERM} if pty else {}),
            **self.identity.env,
            **requested,
        }

    @property
    def session_home(self) -> str:
        """Where agents keep their sessions."""
        return self._session_home or self.accounts.find(None).home

    @property
    def layer(self) -> Layer:
        """The machine's own files."""
        return Layer(self._upper, self.workspace, self.session_home)

    def default_cwd(self, account: Account) -> str:
        return self.workspace if os.path.isdir(self.workspace) else account.home  # noqa: PTH112

    async def rehearse(self) -> None:
        """Start and end a process the way a first claim does, so that the code and pages of it are warm."""
        account = self.accounts.find(None)
        env = self.environment(account, {}, pty=False)
        program = Program("/bin/true", (), env, "/", account)
        process, reader = await self.processes.start(Start(program), quiet=True)
        await self._until_end(process, reader)

    @staticmethod
    async def _until_end(process: Process, reader: Reader) -> None:
        try:
            while reader.final is None or reader.take():
                await reader.wait(1.0)
        finally:
            reader.detach()
