"""The guard of pushes: what an agent's `git push` asks, and who is asked then.

While a policy is in force, a file says so to the wrapper, and a socket takes what it asks. The rails that can be
checked at once are checked here; then the host is asked, through `ask`, and its verdict is the answer.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from warren_guest.accounts import Accounts
from warren_guest.errors import RefusedError, refusal_of
from warren_guest.fields import Fields, parse_object
from warren_guest.git import rails
from warren_guest.git.asked import branch_of, hash_of
from warren_guest.git.places import Places, real_git
from warren_guest.git.wrapper import POLICY
from warren_guest.paths import make_own_folder

log = logging.getLogger(__name__)

ASKED = "git.push_requested"
SOCKET = "push.sock"
_LINE_LIMIT = 1 << 16
_LINE_S = 10.0
_WAITING_LIMIT = 8
_TEXT_LIMIT = 2000
_PEER = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the host decided. `text` is told to who asked."""

    approved: bool
    text: str


# Ask the host: the kind of the question and its facts. Cancelled when who asked has left.
Ask = Callable[[str, Mapping[str, object]], Awaitable[Verdict]]


async def nobody(_kind: str, _facts: Mapping[str, object]) -> Verdict:
    return Verdict(False, "there is nobody who could allow it: no task runs here")


class Guard:
    """Lives on the loop. Without a policy there is neither a file nor a socket, and every push is git's own affair."""

    def __init__(self, places: Places, accounts: Accounts) -> None:
        self.ask: Ask = nobody
        self._places = places
        self._accounts = accounts
        self._policy: rails.Policy | None = None
        self._folder: str | None = None
        self._server: asyncio.AbstractServer | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def enforce(self, policy: rails.Policy) -> str:
        """From now on `policy` is in force. Returns the folder in which the wrapper finds it."""
        async with self._turn:
            try:
                return await self._enforce(policy)
            except OSError as exc:
                raise refusal_of(exc, str(exc.filename or self._places.runtime)) from exc

    async def _enforce(self, policy: rails.Policy) -> str:
        folder = self._folder = self._folder or _make_folder(self._places.runtime)
        path = f"{folder}/{SOCKET}"
        if self._server is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108
            self._server = await asyncio.start_unix_server(self._serve, path, limit=_LINE_LIMIT)
            os.chmod(path, 0o666)  # noqa: PTH101, S103 - who may ask is told by the kernel, for each who does
        self._policy = policy
        told = {"real": real_git(), "socket": path, "url": policy.url, "protected": list(policy.protected)}
        _write(f"{folder}/{POLICY}", json.dumps(told))
        return folder

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One push: a line with what is asked, a line with the verdict."""
        try:
            verdict = await self._heard(reader, writer)
            if verdict is not None:
                told = {"approved": verdict.approved, "text": verdict.text[:_TEXT_LIMIT]}
                writer.write(json.dumps(told).encode() + b"\n")
                await writer.drain()
        except OSError:
            pass  # it has left
        except Exception:
            log.exception("a push could not be answered")
        finally:
            writer.close()

    async def _heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Verdict | None:
        if self._waiting >= _WAITING_LIMIT:
            return Verdict(False, f"{_WAITING_LIMIT} pushes are waiting already")
        self._waiting += 1
        try:
            async with asyncio.timeout(_LINE_S):
                line = await reader.readline()
            # Only now: who is told before it has asked may miss the answer.
            if not self._is_served(writer.get_extra_info("socket")):
                return Verdict(False, "this account cannot push from here")
            return await self._decided(parse_object(line.strip()), reader)
        except (RefusedError, ValueError, TimeoutError) as exc:
            return Verdict(False, exc.message if isinstance(exc, RefusedError) else "what was asked is no request")
        finally:
            self._waiting -= 1

    def _is_served(self, peer: socket.socket) -> bool:
        """Only who works in the sandbox is served: the kernel says who it is."""
        _pid, uid, _gid = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return bool(uid == self._accounts.find(None).uid)

    async def _decided(self, fields: Fields, reader: asyncio.StreamReader) -> Verdict | None:
        """The verdict; None if who asked left before it."""
        facts = {"path": fields.required_text("path"), "branch": branch_of(fields), "commit": hash_of(fields, "commit")}
        branch = facts["branch"]
        if branch is None or facts["commit"] is None or self._policy is None:
            return Verdict(False, "a push has a branch and a commit")
        rails.check_branch(branch, self._policy)
        asking = asyncio.ensure_future(self.ask(ASKED, {**facts, "url": self._policy.url}))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            for each in (asking, leaving):
                each.cancel()
            await asyncio.wait({asking, leaving})


def _make_folder(runtime: str | None) -> str:
    if runtime is None:
        folder = tempfile.mkdtemp(prefix="warren-push-")
        os.chmod(folder, 0o755)  # noqa: PTH101, S103 - what is in it is for everybody to read
        return folder
    make_own_folder(runtime)
    return runtime


def _write(path: str, text: str) -> None:
    """Replace a file as a whole: nobody reads half of it."""
    beside = f"{path}.new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    os.replace(beside, path)  # noqa: PTH105


def write_author(config: str, name: str, email: str) -> None:
    """Say who commits in git's system-wide configuration, which keeps what else it says."""
    ours = f"{config}.warren"
    _write(ours, f"[user]\n\tname = {_quoted(name)}\n\temail = {_quoted(email)}\n")
    try:
        with open(config, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            known = file.read()
    except FileNotFoundError:
        known = ""
    line = f"\tpath = {ours}\n"
    if line not in known:
        fd = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "a", encoding="utf-8") as file:
            file.write(f"{'' if known.endswith(chr(10)) or not known else chr(10)}[include]\n{line}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
