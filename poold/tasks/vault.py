"""What must never be in a row: a task's credentials, variables and the secret of its webhook.

A file a task, `TASK/vault`, that only root may read: there as a whole or not at all, and gone when the task no longer
needs it. The functions block: they are for threads.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from poold import files
from poold.errors import HostFault
from poold.tasks.urls import Credentials

TASK = re.compile(r"tk-[a-z2-7]{16}")
NAME = "vault"
MAX_BYTES = 16 << 20  # a request has half of it at most


@dataclass(frozen=True)
class Kept:
    """A task's secrets. Never printed."""

    credentials: Credentials | None = None  # of its repository
    env: Mapping[str, str] = field(default_factory=dict)
    webhook_secret: str | None = None

    def __repr__(self) -> str:
        return "Kept(…)"

    def encode(self) -> bytes:
        credentials = None if self.credentials is None else self.credentials.view()
        return orjson.dumps({"credentials": credentials, "env": dict(self.env), "webhook_secret": self.webhook_secret})

    @classmethod
    def decode(cls, data: bytes) -> "Kept":
        """What `encode` wrote. Of a file of ours: raises `ValueError`, `TypeError` or `KeyError` for anything else."""
        told: dict[str, Any] = orjson.loads(data)
        credentials = told["credentials"]
        return cls(
            None if credentials is None else Credentials(credentials["username"], credentials["password"]),
            {str(name): str(value) for name, value in told["env"].items()},
            told["webhook_secret"],
        )


class Vault:
    """The secrets of all tasks of this host, in one folder. Raises `OSError` if the disk does not do its part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, task_id: str, kept: Kept) -> None:
        path = self._path(task_id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.put(path, kept.encode(), files.PRIVATE)

    def get(self, task_id: str) -> Kept:
        """What was put; nothing if nothing was, or it is gone."""
        path = self._path(task_id)
        try:
            with path.open("rb") as file:
                return Kept.decode(file.read(MAX_BYTES))
        except FileNotFoundError:
            return Kept()
        except (ValueError, TypeError, KeyError, AttributeError):
            # Not from the error: what it says of the file may be of a secret.
            raise HostFault("reading the secrets of", task_id, hint="the file is damaged") from None

    def has(self, task_id: str) -> bool:
        """Whether something was put, if only that there is nothing: each task of this host has had that."""
        return self._path(task_id).exists()

    def copy(self, task_id: str, to: str) -> None:
        """Let `to` have what `task_id` has, of which it may be a repetition."""
        self.put(to, self.get(task_id))

    def keep_webhook(self, task_id: str) -> None:
        """Forget all but what the last deliveries are signed with."""
        kept = self.get(task_id)
        if kept.webhook_secret is None:
            self.remove(task_id)
        else:
            self.put(task_id, replace(kept, credentials=None, env={}))

    def remove(self, task_id: str) -> None:
        """Remove every trace, also of a writing that was cut short. Succeeds if there is none."""
        path = self._path(task_id)
        for each in (path, *path.parent.glob(f".{NAME}.*")):
            each.unlink(missing_ok=True)
        try:
            path.parent.rmdir()
        except OSError:
            if path.exists():
                raise

    def sweep(self, living: Collection[str]) -> list[str]:
        """Remove what is of no living task, and return whose it was. While no task is being made: at the start."""
        left = [name for name in self._names() if name not in living]
        for task_id in left:
            self.remove(task_id)
        return left

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder) if TASK.fullmatch(name))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def _path(self, task_id: str) -> Path:
        if not TASK.fullmatch(task_id):
            raise ValueError(f"{task_id!r} is no task's id")
        return self._folder / task_id / NAME
