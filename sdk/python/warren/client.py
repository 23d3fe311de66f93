"""The client for threads: thin methods over `calls`, `flows` and a `Line`. `aio` is the same for asyncio."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Unpack

from warren import calls, config, flows, terminals, workspace_calls
from warren.calls import Command, CreateOptions, NetworkAsked, RunOptions
from warren.errors import StreamBroken, WarrenError
from warren.flows import Collected, Execution, Following, Kind, Numbered, Progress, Source, Upload
from warren.lines import Line
from warren.listings import Listing
from warren.models import Connection, Event, Info, Key, NewKey, Reach, Result, Said, Transfer
from warren.retries import Retries
from warren.tasks import Browser, Tasks
from warren.terminals import Terminal
from warren.workspace_models import Saved, Template
from warren.workspaces import Workspaces

AllKeys = list[Key]  # in `Keys`, `list` is a method
TIMEOUT_S = 120.0  # a machine of a new shape is booted first, which takes a while without KVM


class Warren:
    """A gateway. Without arguments: the one of WARREN_URL and WARREN_API_KEY, or of `warren login`."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        ca: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
    ) -> None:
        self._line = Line(config.resolve(url, key, ca), timeout_s, retries or Retries())
        self.keys = Keys(self._line)
        self.tasks = Tasks(self._line)
        self.workspaces = Workspaces(self._line)

    def create(
        self, image: str | None = None, *, idempotency_key: str | None = None, **options: Unpack[CreateOptions]
    ) -> "Sandbox":
        """A new sandbox. Sent again if need be, it is still one sandbox."""
        return Sandbox(self._line, self._line.send(calls.create(image, options, idempotency_key)))

    def get(self, sandbox: str) -> "Sandbox":
        return Sandbox(self._line, self._line.send(calls.get(sandbox)))

    def sandboxes(
        self,
        state: str | Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        image: str | None = None,
        owner: str | None = None,
    ) -> "Listing[Info, Sandbox]":
        """Your sandboxes, newest first, page after page; without `state` all but those that stopped.

        With an admin key, `owner` asks for somebody else's, and `"*"` for everybody's.
        """
        return Listing(
            lambda before: self._line.send(calls.listed(state, metadata, image, owner, before)),
            lambda info: Sandbox(self._line, info),
        )

    def templates(self) -> list[Template]:
        """What the workspace of a new sandbox may begin with."""
        return self._line.send(workspace_calls.templates())

    def hosts(self) -> list[dict[str, Any]]:
        """The hosts and how they are. For admin keys."""
        return self._line.send(calls.hosts())

    def usage(self, owner: str | None = None) -> dict[str, Any]:
        return self._line.send(calls.usage(owner))

    def close(self) -> None:
        self._line.close()

    def __enter__(self) -> "Warren":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sandbox:
    """A sandbox. As a block, it is destroyed at the block's end. `info` is what was told of it last."""

    def __init__(self, line: Line, info: Info) -> None:
        self._line = line
        self.info = info

    @property
    def browser(self) -> Browser:
        """The browser within it, if its image has one."""
        return Browser(self._line, self.id)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def state(self) -> str:
        return self.info.state

    def __repr__(self) -> str:
        return f"<Sandbox {self.id} {self.state}>"

    def refresh(self) -> Info:
        return self._know(calls.get(self.id))

    def pause(self) -> Info:
        """Put it to sleep on disk. Its programs go on when it is resumed."""
        return self._know(calls.pause(self.id))

    def resume(self) -> Info:
        return self._know(calls.resume(self.id))

    def hibernate(self, kind: str = "machine") -> Info:
        """Put it into the object store. Its programs go on when it is resumed, on whichever host.

        With `kind="files"` only its files are kept: its programs end, and a resume is a fresh machine with the files.
        """
        return self._know(calls.hibernate(self.id, kind))

    def recover(self, target: str | Path | IO[bytes], *, progress: Progress | None = None) -> tuple[str, ...]:
        """Carry the disk of a hibernated sandbox to `target`, in zstd: an image of a file system, or an archive (tar)
        if only its files were kept.

        Returns the names of the parts that are damaged in the store, and zeros there.
        """
        damaged: list[str] = []
        self._line.download(calls.drive(self.id), target, progress, None, heads=partial(calls.note_damaged, damaged))
        return tuple(damaged)

    def extend(self, timeout_sec: int) -> Info:
        """Its time is up so long from now."""
        return self._know(calls.extend(self.id, timeout_sec))

    def kill(self, *, discard: bool = False) -> Info:
        """Destroy it, after its workspace was saved. One that is gone already is fine.

        If it cannot be saved, `WorkspaceUnsaved` is raised, and the sandbox ends when it can be; with `discard` it
        ends now, and what was not saved is lost.
        """
        return self._know(calls.kill(self.id, discard=discard, is_saved=self.info.is_saved))

    def save_workspace(self) -> Saved:
        """Save its workspace now. It is saved too when it ends or is paused, and now and then."""
        saved = self._line.send(workspace_calls.save(self.id))
        self.info = replace(self.info, workspace=saved.workspace)
        return saved

    def run(
        self,
        cmd: Command,
        *,
        check: bool = False,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
        kept_bytes: int = flows.KEPT_BYTES,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Run a command line (with bash), or a program with its arguments, to its end."""
        collected = Collected(kept_bytes)
        for said in self.stream(cmd, **options):
            collected.add(said)
            flows.tell(said, on_stdout, on_stderr)
        result = collected.result()
        return result.check() if check else result

    def stream(self, cmd: Command, **options: Unpack[RunOptions]) -> Iterator[Said]:
        """What a command says, as it says it. The last is `Exited`, or an error is raised.

        A command whose stream is left goes on in the sandbox; `signal` ends it.
        """
        execution = Execution()
        with self._line.open(calls.execute(self.id, cmd, options)) as (_, pieces):
            try:
                for piece in pieces:
                    yield from execution.feed(piece)
            except StreamBroken:
                if not execution.is_over:
                    raise
        execution.end()

    def signal(self, pid: int, name: str = "TERM", *, user: str = "root") -> bool:
        """Send a signal to a command and all that it started. Whether there was anything to send it to."""
        return self.run(flows.signal_command(pid, name), user=user).ok

    def write(self, path: str, data: bytes | str, *, user: str | None = None, mode: int | None = None) -> Transfer:
        """`data` becomes the file; folders on the way to it are made."""
        return self.upload(data.encode() if isinstance(data, str) else data, path, user=user, mode=mode)

    def read(self, path: str, *, user: str | None = None) -> bytes:
        with self._line.open(calls.download(self.id, path, user)) as (_, pieces):
            return b"".join(pieces)

    def upload(
        self,
        source: Source,
        path: str,
        *,
        user: str | None = None,
        mode: int | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """Carry bytes, a file (by its name) or an open file into the sandbox, piece by piece."""
        with contextlib.closing(Upload(source, progress)) as upload:
            call = calls.upload(self.id, path, user, mode, upload.size)
            arrived = self._line.upload(call, upload)
            return upload.carried.done(arrived)

    def download(
        self,
        path: str,
        target: str | Path | IO[bytes],
        *,
        user: str | None = None,
        progress: Progress | None = None,
        sha256: str | None = None,
    ) -> Transfer:
        """Carry a file out of the sandbox. A file named `target` is there when all of it is, and not before."""
        return self._line.download(calls.download(self.id, path, user), target, progress, sha256)

    def events(self, after: int = 0, *, follow: bool = True) -> Iterator[Event]:
        """What happened behind number `after`, and then what happens, until the sandbox has ended.

        A connection that breaks is made again; no event is told twice, and none is left out.
        """
        return self._followed(flows.EVENTS, after, follow=follow)

    def network(self) -> Reach:
        """What it may reach, and the policies that it is within."""
        return self._line.send(calls.network(self.id))

    def set_network(self, network: NetworkAsked) -> Info:
        """From now on it may reach this, and nothing of what it might before: what is open and not in it is cut."""
        return self._know(calls.set_network(self.id, network))

    def egress(self, after: int = 0, *, follow: bool = True, verdict: str | None = None) -> Iterator[Connection]:
        """What it tried to reach behind number `after`, and then what it tries, as `events`.

        A connection is told when it is over, or was refused. `verdict` asks only for "allowed" or "refused" ones.
        """
        return self._followed(flows.connections(verdict), after, follow=follow)

    def open_connections(self) -> list[Connection]:
        return self._line.send(calls.open_egress(self.id))

    def _followed(self, kind: Kind[Numbered], after: int, *, follow: bool) -> Iterator[Numbered]:
        following = Following(kind, self.id, after, self._line.retries)
        return self._line.follow(following, (lambda: self.refresh().is_over) if follow else None)

    def logs(self, lines: int = 200) -> str:
        """The last lines of what the machine's own supervisor logged."""
        return self._line.send(calls.logs(self.id, lines))

    def terminal(
        self,
        *,
        cols: int = 80,
        rows: int = 24,
        user: str | None = None,
        cmd: str | None = None,
        pid: int | None = None,
        direct: bool = False,
    ) -> Terminal:
        """A shell (or `cmd`) on a terminal, or the one with number `pid` again.

        `direct` asks for a ticket and goes to the sandbox's host itself, past the gateway.
        """
        query = calls.terminal_query(pid, cols, rows, user, cmd)
        if direct:
            door = terminals.direct(self._line.send(calls.attach(self.id)), query)
        else:
            door = terminals.through_gateway(self._line.config, calls.terminal_path(self.id), query)
        return terminals.open_terminal(door)

    def preview_url(self, port: int, *, public: bool = False, expires_sec: int | None = None) -> str:
        """An address that shows a port of the sandbox: with a signed link, or `public`, for everybody without one."""
        if public:
            self._know(calls.publish(self.id, port, public=True))
        link = self._line.send(calls.link(self.id, port, expires_sec))
        return calls.without_pass(link) if public else link

    def unpublish(self, port: int) -> Info:
        """Whoever has no link and no key no longer sees the port."""
        return self._know(calls.publish(self.id, port, public=False))

    def _know(self, call: calls.Call[Info]) -> Info:
        self.info = self._line.send(call)
        return self.info

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What went wrong in the block is told, and not that it could not be cleaned up after it.
        with contextlib.suppress(WarrenError) if kind is not None else contextlib.nullcontext():
            self.kill()


class Keys:
    """API keys. For admin keys only."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def list(self) -> AllKeys:
        return self._line.send(calls.keys())

    def create(self, owner: str, **fields: Any) -> NewKey:
        """A new key; `fields` as the gateway's API has them: name, plan, pools, scopes, rate, expires_ms, network."""
        return self._line.send(calls.create_key(owner, fields))

    def revoke(self, key: str) -> None:
        self._line.send(calls.revoke_key(key))

    def rotate(self, key: str, grace_sec: int = calls.GRACE_S) -> NewKey:
        """A new secret for the same rights; the old one is good for `grace_sec` more seconds: else an hour."""
        return self._line.send(calls.rotate_key(key, grace_sec))
