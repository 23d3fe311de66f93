"""The client for asyncio: as `client`, method for method. Nothing here decides anything; `calls` and `flows` do."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Unpack

from warren import calls, config, flows, terminals, workspace_calls
from warren.aio_tasks import AsyncBrowser, AsyncTasks
from warren.aio_workspaces import AsyncWorkspaces
from warren.calls import Command, CreateOptions, NetworkAsked, RunOptions
from warren.client import TIMEOUT_S, AllKeys
from warren.errors import StreamBroken, WarrenError
from warren.flows import Collected, Execution, Following, Kind, Numbered, Progress, Source, Upload
from warren.lines import AsyncLine
from warren.listings import AsyncListing
from warren.models import Connection, Event, Info, NewKey, Reach, Result, Said, Transfer
from warren.retries import Retries
from warren.terminals import AsyncTerminal
from warren.workspace_models import Saved, Template


class AsyncWarren:
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
        self._line = AsyncLine(config.resolve(url, key, ca), timeout_s, retries or Retries())
        self.keys = AsyncKeys(self._line)
        self.tasks = AsyncTasks(self._line)
        self.workspaces = AsyncWorkspaces(self._line)

    async def create(
        self, image: str | None = None, *, idempotency_key: str | None = None, **options: Unpack[CreateOptions]
    ) -> "AsyncSandbox":
        return AsyncSandbox(self._line, await self._line.send(calls.create(image, options, idempotency_key)))

    async def get(self, sandbox: str) -> "AsyncSandbox":
        return AsyncSandbox(self._line, await self._line.send(calls.get(sandbox)))

    def sandboxes(
        self,
        state: str | Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        image: str | None = None,
        owner: str | None = None,
    ) -> "AsyncListing[Info, AsyncSandbox]":
        """For `async for`."""
        return AsyncListing(
            lambda before: self._line.send(calls.listed(state, metadata, image, owner, before)),
            lambda info: AsyncSandbox(self._line, info),
        )

    async def templates(self) -> list[Template]:
        return await self._line.send(workspace_calls.templates())

    async def hosts(self) -> list[dict[str, Any]]:
        return await self._line.send(calls.hosts())

    async def usage(self, owner: str | None = None) -> dict[str, Any]:
        return await self._line.send(calls.usage(owner))

    async def close(self) -> None:
        await self._line.close()

    async def __aenter__(self) -> "AsyncWarren":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncSandbox:
    """A sandbox. As a block, it is destroyed at the block's end. `info` is what was told of it last."""

    def __init__(self, line: AsyncLine, info: Info) -> None:
        self._line = line
        self.info = info

    @property
    def browser(self) -> AsyncBrowser:
        return AsyncBrowser(self._line, self.id)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def state(self) -> str:
        return self.info.state

    def __repr__(self) -> str:
        return f"<AsyncSandbox {self.id} {self.state}>"

    async def refresh(self) -> Info:
        return await self._know(calls.get(self.id))

    async def pause(self) -> Info:
        return await self._know(calls.pause(self.id))

    async def resume(self) -> Info:
        return await self._know(calls.resume(self.id))

    async def hibernate(self, kind: str = "machine") -> Info:
        return await self._know(calls.hibernate(self.id, kind))

    async def recover(self, target: str | Path | IO[bytes], *, progress: Progress | None = None) -> tuple[str, ...]:
        damaged: list[str] = []
        heads = partial(calls.note_damaged, damaged)
        await self._line.download(calls.drive(self.id), target, progress, None, heads=heads)
        return tuple(damaged)

    async def extend(self, timeout_sec: int) -> Info:
        return await self._know(calls.extend(self.id, timeout_sec))

    async def kill(self, *, discard: bool = False) -> Info:
        return await self._know(calls.kill(self.id, discard=discard, is_saved=self.info.is_saved))

    async def save_workspace(self) -> Saved:
        saved = await self._line.send(workspace_calls.save(self.id))
        self.info = replace(self.info, workspace=saved.workspace)
        return saved

    async def run(
        self,
        cmd: Command,
        *,
        check: bool = False,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
        kept_bytes: int = flows.KEPT_BYTES,
        **options: Unpack[RunOptions],
    ) -> Result:
        collected = Collected(kept_bytes)
        async with contextlib.aclosing(self.stream(cmd, **options)) as stream:
            async for said in stream:
                collected.add(said)
                flows.tell(said, on_stdout, on_stderr)
        result = collected.result()
        return result.check() if check else result

    async def stream(self, cmd: Command, **options: Unpack[RunOptions]) -> AsyncGenerator[Said, None]:
        execution = Execution()
        async with self._line.open(calls.execute(self.id, cmd, options)) as (_, pieces):
            try:
                async for piece in pieces:
                    for said in execution.feed(piece):
                        yield said
            except StreamBroken:
                if not execution.is_over:
                    raise
        execution.end()

    async def signal(self, pid: int, name: str = "TERM", *, user: str = "root") -> bool:
        return (await self.run(flows.signal_command(pid, name), user=user)).ok

    async def write(
        self, path: str, data: bytes | str, *, user: str | None = None, mode: int | None = None
    ) -> Transfer:
        return await self.upload(data.encode() if isinstance(data, str) else data, path, user=user, mode=mode)

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        async with self._line.open(calls.download(self.id, path, user)) as (_, pieces):
            return b"".join([piece async for piece in pieces])

    async def upload(
        self,
        source: Source,
        path: str,
        *,
        user: str | None = None,
        mode: int | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """`progress` is called in a thread."""
        with contextlib.closing(await asyncio.to_thread(Upload, source, progress)) as upload:
            call = calls.upload(self.id, path, user, mode, upload.size)
            arrived = await self._line.upload(call, upload)
            return upload.carried.done(arrived)

    async def download(
        self,
        path: str,
        target: str | Path | IO[bytes],
        *,
        user: str | None = None,
        progress: Progress | None = None,
        sha256: str | None = None,
    ) -> Transfer:
        return await self._line.download(calls.download(self.id, path, user), target, progress, sha256)

    def events(self, after: int = 0, *, follow: bool = True) -> AsyncGenerator[Event, None]:
        return self._followed(flows.EVENTS, after, follow=follow)

    async def network(self) -> Reach:
        return await self._line.send(calls.network(self.id))

    async def set_network(self, network: NetworkAsked) -> Info:
        return await self._know(calls.set_network(self.id, network))

    def egress(
        self, after: int = 0, *, follow: bool = True, verdict: str | None = None
    ) -> AsyncGenerator[Connection, None]:
        return self._followed(flows.connections(verdict), after, follow=follow)

    async def open_connections(self) -> list[Connection]:
        return await self._line.send(calls.open_egress(self.id))

    def _followed(self, kind: Kind[Numbered], after: int, *, follow: bool) -> AsyncGenerator[Numbered, None]:
        following = Following(kind, self.id, after, self._line.retries)
        return self._line.follow(following, self._is_over if follow else None)

    async def _is_over(self) -> bool:
        return (await self.refresh()).is_over

    async def logs(self, lines: int = 200) -> str:
        return await self._line.send(calls.logs(self.id, lines))

    async def terminal(
        self,
        *,
        cols: int = 80,
        rows: int = 24,
        user: str | None = None,
        cmd: str | None = None,
        pid: int | None = None,
        direct: bool = False,
    ) -> AsyncTerminal:
        query = calls.terminal_query(pid, cols, rows, user, cmd)
        if direct:
            door = terminals.direct(await self._line.send(calls.attach(self.id)), query)
        else:
            door = terminals.through_gateway(self._line.config, calls.terminal_path(self.id), query)
        return await terminals.open_async_terminal(door)

    async def preview_url(self, port: int, *, public: bool = False, expires_sec: int | None = None) -> str:
        if public:
            await self._know(calls.publish(self.id, port, public=True))
        link = await self._line.send(calls.link(self.id, port, expires_sec))
        return calls.without_pass(link) if public else link

    async def unpublish(self, port: int) -> Info:
        return await self._know(calls.publish(self.id, port, public=False))

    async def _know(self, call: calls.Call[Info]) -> Info:
        self.info = await self._line.send(call)
        return self.info

    async def __aenter__(self) -> "AsyncSandbox":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.suppress(WarrenError) if kind is not None else contextlib.nullcontext():
            await self._kill_surely()

    async def _kill_surely(self) -> None:
        """Also when this task is cancelled: the request is sent to its end, and then the cancellation goes on."""
        killing = asyncio.ensure_future(self.kill())
        try:
            await asyncio.shield(killing)
        except asyncio.CancelledError:
            with contextlib.suppress(WarrenError):
                await killing
            raise


class AsyncKeys:
    """API keys. For admin keys only."""

    def __init__(self, line: AsyncLine) -> None:
        self._line = line

    async def list(self) -> AllKeys:
        return await self._line.send(calls.keys())

    async def create(self, owner: str, **fields: Any) -> NewKey:
        return await self._line.send(calls.create_key(owner, fields))

    async def revoke(self, key: str) -> None:
        await self._line.send(calls.revoke_key(key))

    async def rotate(self, key: str, grace_sec: int = calls.GRACE_S) -> NewKey:
        return await self._line.send(calls.rotate_key(key, grace_sec))
