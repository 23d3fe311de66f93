"""Tasks for asyncio: as `tasks`, method for method."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import IO, Any, Unpack

from warren import task_calls
from warren.calls import Call
from warren.flows import TASK_EVENTS, Following, Progress
from warren.lines import AsyncLine
from warren.listings import AsyncListing
from warren.models import Transfer
from warren.task_calls import TaskOptions
from warren.task_models import Artifact, Diff, Question, Step, TaskEvent, TaskInfo, View
from warren.tasks import Looks, archive_hash


class AsyncTasks:
    """What agents do for you."""

    def __init__(self, line: AsyncLine) -> None:
        self._line = line

    async def create(
        self, prompt: str, *, agent: str, idempotency_key: str | None = None, **options: Unpack[TaskOptions]
    ) -> "AsyncTask":
        return AsyncTask(self._line, await self._line.send(task_calls.create(prompt, agent, options, idempotency_key)))

    async def get(self, task: str) -> "AsyncTask":
        return AsyncTask(self._line, await self._line.send(task_calls.get(task)))

    def list(
        self, state: str | Sequence[str] | None = None, agent: str | None = None, owner: str | None = None
    ) -> "AsyncListing[TaskInfo, AsyncTask]":
        """For `async for`."""
        return AsyncListing(
            lambda before: self._line.send(task_calls.listed(state, agent, owner, before)),
            lambda info: AsyncTask(self._line, info),
        )


class AsyncTask:
    """A task. `info` is what was told of it last."""

    def __init__(self, line: AsyncLine, info: TaskInfo) -> None:
        self._line = line
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def state(self) -> str:
        return self.info.state

    @property
    def waiting(self) -> tuple[Question, ...]:
        return self.info.waiting

    def __repr__(self) -> str:
        return f"<AsyncTask {self.id} {self.state}>"

    async def refresh(self) -> TaskInfo:
        return await self._know(task_calls.get(self.id))

    async def wait(self, timeout_s: float | None = None, *, check: bool = False) -> TaskInfo:
        looks = Looks(timeout_s)
        while not (await self.refresh()).is_over:  # noqa: ASYNC110 — the other side has no event of ours
            await asyncio.sleep(looks.wait_s(self.info))
        return self.info.check() if check else self.info

    def events(self, after: int = 0, *, follow: bool = True) -> AsyncGenerator[TaskEvent, None]:
        following = Following(TASK_EVENTS, self.id, after, self._line.retries)
        return self._line.follow(following, self._is_over if follow else None)

    async def _is_over(self) -> bool:
        return (await self.refresh()).is_over

    async def stop(self) -> TaskInfo:
        return await self._know(task_calls.act(self.id, "stop"))

    async def pause(self) -> TaskInfo:
        return await self._know(task_calls.act(self.id, "pause"))

    async def resume(self) -> TaskInfo:
        return await self._know(task_calls.act(self.id, "resume"))

    async def approve(self, question: str, text: str = "") -> TaskInfo:
        return await self._say("approve", question, text)

    async def reject(self, question: str, text: str = "") -> TaskInfo:
        return await self._say("reject", question, text)

    async def answer(self, question: str, text: str) -> TaskInfo:
        return await self._say("answer", question, text)

    async def instruct(self, text: str) -> TaskInfo:
        return await self._say("instruct", None, text)

    async def steps(self, after: int = 0) -> AsyncGenerator[Step, None]:
        while page := await self._line.send(task_calls.steps(self.id, after)):
            for step in page:
                yield step
            after = max(after + 1, page[-1].number)

    async def diff(self) -> Diff:
        return await self._line.send(task_calls.diff(self.id))

    async def artifacts(self) -> list[Artifact]:
        return await self._line.send(task_calls.artifacts(self.id))

    async def download(
        self, artifact: str | Artifact, target: str | Path | IO[bytes], *, progress: Progress | None = None
    ) -> Transfer:
        name, sha256 = (artifact, None) if isinstance(artifact, str) else (artifact.name, artifact.sha256)
        return await self._line.download(task_calls.artifact(self.id, name), target, progress, sha256)

    async def archive(self, target: str | Path | IO[bytes], *, progress: Progress | None = None) -> Transfer:
        return await self._line.download(task_calls.archive(self.id), target, progress, archive_hash(self.info))

    async def retry(self, *, idempotency_key: str | None = None, **changes: Any) -> "AsyncTask":
        return AsyncTask(self._line, await self._line.send(task_calls.retry(self.id, changes, idempotency_key)))

    async def _say(self, kind: str, question: str | None, text: str) -> TaskInfo:
        return await self._know(task_calls.say(self.id, kind, question, text))

    async def _know(self, call: Call[TaskInfo]) -> TaskInfo:
        self.info = await self._line.send(call)
        return self.info


class AsyncBrowser:
    """The browser in a sandbox: one page. What it shows comes from anybody: treat it so."""

    def __init__(self, line: AsyncLine, sandbox: str) -> None:
        self._line, self._sandbox = line, sandbox

    async def open(
        self, url: str, *, width: int | None = None, height: int | None = None, full_page: bool | None = None
    ) -> View:
        return await self._do("open", url=url, width=width, height=height, full_page=full_page)

    async def click(self, selector: str) -> View:
        return await self._do("click", selector=selector)

    async def type(self, selector: str, text: str, *, submit: bool = False) -> View:
        return await self._do("type", selector=selector, text=text, submit=submit)

    async def evaluate(self, script: str) -> View:
        return await self._do("evaluate", script=script)

    async def close(self) -> None:
        await self._line.send(task_calls.close_browser(self._sandbox))

    async def _do(self, what: str, **fields: Any) -> View:
        return await self._line.send(task_calls.browse(self._sandbox, what, fields))
