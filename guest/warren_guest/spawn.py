"""Starting a program: checks first, so that refusals say what is missing, then fork and exec.

Everything here may block and is called from a thread. Nothing here waits for a child: that is the reaper's.
"""

import contextlib
import errno
import fcntl
import functools
import os
import socket
import stat
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from warren_guest import frames, syscalls
from warren_guest.accounts import Account
from warren_guest.errors import RefusedError, refusal_of

_PIPE_BYTES = 1 << 20
_SO_SNDBUFFORCE = 32


@dataclass(frozen=True, slots=True)
class Window:
    cols: int
    rows: int


@dataclass(frozen=True, slots=True)
class Program:
    """What to start. `env` is complete, `cwd` absolute. With `no_new_privs` no program that it starts gains rights."""

    cmd: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    account: Account
    stdin: bool = False
    pty: Window | None = None
    no_new_privs: bool = False
    # Its input and output are sockets: unlike pipes, no other process can open them by /proc/PID/fd.
    is_private: bool = False
    # The file by which it enters a control group, with all that it will start.
    group: str | None = None
    # Beside the usual three: descriptors of ours by the numbers that it knows them by. They stay ours to close.
    fds: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Child:
    """A started process. The descriptors are ours, non-blocking, and belong to who takes the child."""

    pid: int
    outputs: dict[int, int]
    stdin: int | None


class OomShield:
    """Keeps this process away from the kernel's OOM killer, but not what it starts.

    The score is inherited at fork, so it is lowered around each start: a child that was born invulnerable could fork
    others before anybody changed it. Being killable for a moment is harmless, as the largest process goes first.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._starting = 0
        self._write(b"-1000")

    def _write(self, score: bytes) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, score, 0)

    @contextlib.contextmanager
    def lowered(self) -> Iterator[None]:
        with self._lock:
            self._starting += 1
            if self._starting == 1:
                self._write(b"0")
        try:
            yield
        finally:
            with self._lock:
                self._starting -= 1
                if not self._starting:
                    self._write(b"-1000")


Shield = contextlib.AbstractContextManager[None]


def spawn(program: Program, shield: Shield) -> Child:
    """Start `program` in a session of its own. If this raises, no process and no descriptor of it remains.

    Raises `cwd_not_found`, `program_not_found`, `program_not_executable`, `too_many_processes` and the like.
    """
    _check_cwd(program.cwd)
    executable = find_program(program)
    try:
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as theirs:
            plan = _pty_plan if program.pty else _pipe_plan
            child, stdio = plan(program, on_failure, theirs)
            prepare = _before_exec(program, _open_group(program, theirs))
            with shield:
                child.pid = _start(program, executable, stdio, prepare)
            on_failure.pop_all()
            return child
    except OSError as exc:
        raise _refusal(exc, program) from exc


def _start(program: Program, executable: str, stdio: tuple[int, int, int], prepare: Callable[[], None] | None) -> int:
    account = program.account
    # Only the superuser may become somebody else; a local guest runs what it starts as itself.
    identity = {"user": account.uid, "group": account.gid, "extra_groups": account.groups} if os.geteuid() == 0 else {}
    process = subprocess.Popen(  # type: ignore[call-overload]
        [program.cmd, *program.args],
        executable=executable,
        stdin=stdio[0],
        stdout=stdio[1],
        stderr=stdio[2],
        cwd=program.cwd,
        env=program.env,
        start_new_session=True,
        umask=0o022,
        # All that we have open is closed by exec: there is nothing to close but what is given, and that must stay.
        close_fds=not program.fds,
        # System calls that take no lock: safe after a fork, whatever other threads were doing.
        preexec_fn=prepare,  # noqa: PLW1509
        **identity,
    )
    # The object believes that it is over: the status is the reaper's, and it must never wait for it itself.
    process.returncode = 0
    return int(process.pid)


def _open_group(program: Program, theirs: contextlib.ExitStack) -> int | None:
    """The door of its group, opened with our rights: who is let in has given up its own by then."""
    if program.group is None:
        return None
    fd = os.open(program.group, os.O_WRONLY | os.O_CLOEXEC)
    theirs.callback(os.close, fd)
    return fd


def _before_exec(program: Program, group: int | None) -> Callable[[], None] | None:
    """What the new process does before it becomes the program."""
    steps: list[Callable[[], object]] = []
    if group is not None:
        steps.append(functools.partial(os.write, group, b"0"))  # 0: who writes it
    if program.pty:
        steps.append(_take_terminal)
    if program.fds:
        steps.append(functools.partial(_take_fds, program.fds))
    if program.no_new_privs:
        steps.append(syscalls.forbid_new_privileges())
    if not steps:
        return None

    def prepare() -> None:
        for step in steps:
            step()

    return prepare


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _take_fds(fds: Mapping[int, int]) -> None:
    # Out of the way first: one may have the number that another is to get.
    aside = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(fds) + 1) for number, fd in fds.items()}
    for number, fd in aside.items():
        os.dup2(fd, number)


def _pipe_plan(
    program: Program, on_failure: contextlib.ExitStack, theirs: contextlib.ExitStack
) -> tuple[Child, tuple[int, int, int]]:
    stdout, its_stdout = _output_socket(on_failure, theirs) if program.is_private else _pipe(on_failure, theirs)
    stderr, its_stderr = _pipe(on_failure, theirs)
    if program.stdin:
        stdin, its_stdin = _input_socket() if program.is_private else os.pipe2(os.O_CLOEXEC)[::-1]
        theirs.callback(os.close, its_stdin)
        on_failure.callback(os.close, stdin)
        os.set_blocking(stdin, False)
    else:
        its_stdin, stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), None
        theirs.callback(os.close, its_stdin)
    child = Child(0, {frames.STDOUT: stdout, frames.STDERR: stderr}, stdin)
    return child, (its_stdin, its_stdout, its_stderr)


def _pipe(on_failure: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """A large pipe for output: our end without blocking, and the end of the process."""
    ours, its = os.pipe2(os.O_CLOEXEC)
    on_failure.callback(os.close, ours)
    theirs.callback(os.close, its)
    os.set_blocking(ours, False)
    with contextlib.suppress(OSError):  # the user's pipe budget may be used up; a small pipe works too
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return ours, its


def _output_socket(on_failure: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """As `_pipe`, but a pair of sockets."""
    ours, its = socket.socketpair()
    with contextlib.suppress(OSError):  # only the superuser may have a large one; a small one works too
        its.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _PIPE_BYTES)
    ours.setblocking(False)
    on_failure.callback(os.close, ours.fileno())
    theirs.callback(os.close, its.fileno())
    return ours.detach(), its.detach()


def _input_socket() -> tuple[int, int]:
    """Our end and that of the process, in which it cannot answer: nobody would read it."""
    ours, its = socket.socketpair()
    ours.shutdown(socket.SHUT_RD)
    return ours.detach(), its.detach()


def _pty_plan(
    program: Program, on_failure: contextlib.ExitStack, theirs: contextlib.ExitStack
) -> tuple[Child, tuple[int, int, int]]:
    master, slave = os.openpty()
    on_failure.callback(os.close, master)
    theirs.callback(os.close, slave)
    stdin = os.dup(master)
    on_failure.callback(os.close, stdin)
    os.set_blocking(master, False)
    if program.pty is not None:
        termios.tcsetwinsize(slave, (program.pty.rows, program.pty.cols))
    with contextlib.suppress(OSError):  # a local guest without root cannot; its own terminal is its own
        os.fchown(slave, program.account.uid, -1)
    return Child(0, {frames.PTY: master}, stdin), (slave, slave, slave)


def _check_cwd(cwd: str) -> None:
    try:
        facts = os.stat(cwd)  # noqa: PTH116 - the caller's text, not to be normalised
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise RefusedError("cwd_not_found", f"the folder {cwd} does not exist", field="cwd") from exc
    except OSError as exc:
        raise refusal_of(exc, cwd) from exc
    if not stat.S_ISDIR(facts.st_mode):
        raise RefusedError("cwd_not_found", f"{cwd} is not a folder", field="cwd")


def find_program(program: Program) -> str:
    """The file that `cmd` means: as a path from `cwd`, or a name along the PATH of its own environment."""
    places = [""] if "/" in program.cmd else program.env.get("PATH", "").split(":")
    seen_unusable = None
    for place in places:
        candidate = os.path.join(program.cwd, place, program.cmd)  # noqa: PTH118 - once per entry of PATH
        try:
            facts = os.stat(candidate)  # noqa: PTH116
        except OSError:
            continue
        if stat.S_ISREG(facts.st_mode) and facts.st_mode & 0o111:
            return candidate
        seen_unusable = candidate
    if seen_unusable is not None:
        raise RefusedError("program_not_executable", f"{seen_unusable} is not an executable file", field="cmd")
    raise RefusedError("program_not_found", f"there is no program {program.cmd}", field="cmd")


def _refusal(error: OSError, program: Program) -> RefusedError:
    """What a failed start means. Popen names the folder if changing to it failed, else the program."""
    if error.filename == program.cwd:
        return refusal_of(error, program.cwd)
    match error.errno:
        case errno.ENOENT:
            # The file was there a moment ago: the interpreter that its first line names is not.
            return RefusedError("program_not_found", f"the interpreter of {program.cmd} does not exist", field="cmd")
        case errno.EACCES | errno.ENOEXEC | errno.ELIBBAD | errno.ENOTDIR:
            message = f"{program.cmd} cannot be executed by {program.account.name}: {error.strerror}"
            return RefusedError("program_not_executable", message, field="cmd")
        case errno.E2BIG:
            return RefusedError("bad_field", "args: arguments and environment are too large", field="args")
        case errno.EAGAIN | errno.EMFILE | errno.ENFILE | errno.ENOMEM | errno.ENOSPC:
            return RefusedError("too_many_processes", f"the machine cannot start another process: {error.strerror}")
    return refusal_of(error, program.cmd)
