"""Warren: sandboxes for code and agents, in microVMs on machines that you own.

from warren import Warren

with Warren() as warren, warren.create(image="python") as sandbox:
    print(sandbox.run("uname -a").stdout)
"""

from warren.__about__ import __version__
from warren.aio import AsyncSandbox, AsyncWarren
from warren.aio_tasks import AsyncTask
from warren.aio_workspaces import AsyncWorkspace
from warren.client import Sandbox, Warren
from warren.errors import (
    BadKey,
    CallerError,
    CapacityError,
    ConfigError,
    Corrupted,
    DeadlinePassed,
    FaultError,
    Forbidden,
    NotFound,
    PoolExhausted,
    ProtocolError,
    RateLimited,
    StreamBroken,
    Unreachable,
    WarrenError,
    WorkspaceUnsaved,
    WrongState,
)
from warren.models import (
    CommandFailed,
    Connection,
    Event,
    Exited,
    HeldWorkspace,
    HostRule,
    Info,
    Key,
    NetRule,
    Network,
    NewKey,
    Reach,
    Result,
    Said,
    Started,
    Stderr,
    Stdout,
    Ticket,
    Transfer,
    Within,
)
from warren.retries import Retries
from warren.task_models import Artifact, Diff, Question, Step, TaskEvent, TaskFailed, TaskInfo, Usage, View
from warren.tasks import Task
from warren.terminals import AsyncTerminal, Terminal
from warren.workspace_models import Change, Saved, Template, Version, WorkspaceDiff, WorkspaceInfo
from warren.workspaces import Workspace

__all__ = [
    "Artifact",
    "AsyncSandbox",
    "AsyncTask",
    "AsyncTerminal",
    "AsyncWarren",
    "AsyncWorkspace",
    "BadKey",
    "CallerError",
    "CapacityError",
    "Change",
    "CommandFailed",
    "ConfigError",
    "Connection",
    "Corrupted",
    "DeadlinePassed",
    "Diff",
    "Event",
    "Exited",
    "FaultError",
    "Forbidden",
    "HeldWorkspace",
    "HostRule",
    "Info",
    "Key",
    "NetRule",
    "Network",
    "NewKey",
    "NotFound",
    "PoolExhausted",
    "ProtocolError",
    "Question",
    "RateLimited",
    "Reach",
    "Result",
    "Retries",
    "Said",
    "Sandbox",
    "Saved",
    "Started",
    "Stderr",
    "Stdout",
    "Step",
    "StreamBroken",
    "Task",
    "TaskEvent",
    "TaskFailed",
    "TaskInfo",
    "Template",
    "Terminal",
    "Ticket",
    "Transfer",
    "Unreachable",
    "Usage",
    "Version",
    "View",
    "Warren",
    "WarrenError",
    "Within",
    "Workspace",
    "WorkspaceDiff",
    "WorkspaceInfo",
    "WorkspaceUnsaved",
    "WrongState",
    "__version__",
]
