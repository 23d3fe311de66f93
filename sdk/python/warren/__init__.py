"""Warren: sandboxes for code and agents, in microVMs on machines that you own.

from warren import Warren

with Warren() as warren, warren.create(image="python") as sandbox:
    print(sandbox.run("uname -a").stdout)
"""

from warren.__about__ import __version__
from warren.aio import AsyncSandbox, AsyncWarren
from warren.aio_tasks import AsyncTask
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
    WrongState,
)
from warren.models import (
    CommandFailed,
    Connection,
    Event,
    Exited,
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

__all__ = [
    "Artifact",
    "AsyncSandbox",
    "AsyncTask",
    "AsyncTerminal",
    "AsyncWarren",
    "BadKey",
    "CallerError",
    "CapacityError",
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
    "Started",
    "Stderr",
    "Stdout",
    "Step",
    "StreamBroken",
    "Task",
    "TaskEvent",
    "TaskFailed",
    "TaskInfo",
    "Terminal",
    "Ticket",
    "Transfer",
    "Unreachable",
    "Usage",
    "View",
    "Warren",
    "WarrenError",
    "Within",
    "WrongState",
    "__version__",
]
