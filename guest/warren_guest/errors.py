"""Refusals: what the guest answers when it will not do what was asked. The one map from codes to HTTP statuses."""

import errno
from collections.abc import Mapping

STATUS = {
    "bad_request": 400,
    "bad_field": 400,
    "bad_path": 400,
    "not_a_directory": 400,
    "is_a_directory": 400,
    "cwd_not_found": 400,
    "program_not_found": 400,
    "program_not_executable": 400,
    "unknown_user": 400,
    "unknown_signal": 400,
    "no_pty": 400,
    "no_stdin": 400,
    "not_a_repository": 400,
    "browser_missing": 400,
    "permission_denied": 403,
    "not_found": 404,
    "no_element": 404,
    "method_not_allowed": 405,
    "already_answered": 409,
    "already_exists": 409,
    "already_identified": 409,
    "cancelled": 409,
    "git_failed": 409,
    "no_run": 409,
    "not_possible": 409,
    "operation_taken": 409,
    "process_ended": 409,
    "push_refused": 409,
    "run_under_way": 409,
    "no_page": 409,
    "body_too_large": 413,
    "bad_range": 416,
    "too_many_operations": 429,
    "too_many_processes": 429,
    "too_many_questions": 429,
    "too_many_tunnels": 429,
    "too_many_watches": 429,
    "internal": 500,
    "clone_failed": 502,
    "port_closed": 502,
    "push_failed": 502,
    "page_failed": 502,
    "browser_timeout": 504,
    "disk_full": 507,
}

_BY_ERRNO = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_a_directory",
    errno.EISDIR: "is_a_directory",
    errno.EEXIST: "already_exists",
    errno.ENOTEMPTY: "already_exists",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    # A running program, or a mount point: it is there, and now is not the time.
    errno.ETXTBSY: "permission_denied",
    errno.EBUSY: "permission_denied",
    errno.ENAMETOOLONG: "bad_path",
    errno.ELOOP: "bad_path",
    # A folder moved into itself, a name that the file system cannot hold.
    errno.EINVAL: "bad_path",
    # Opening a socket file, or a FIFO that nobody reads.
    errno.ENXIO: "bad_path",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
}


class RefusedError(Exception):
    """A request that is refused. `field` names what was wrong in it, if anything was; `facts` are told beside that."""

    def __init__(
        self, code: str, message: str, *, field: str | None = None, facts: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = STATUS[code]
        self.message = message
        self.field = field
        self.facts = dict(facts or {})

    def as_json(self) -> dict[str, dict[str, str]]:
        error = {"code": self.code, "message": self.message, **self.facts}
        if self.field is not None:
            error["field"] = self.field
        return {"error": error}


def refusal_of(error: OSError, path: str) -> RefusedError:
    """Say in the contract's words what the kernel said about `path`.

    An errno without a word of its own (EIO, a broken FUSE mount) is `internal`: the caller did nothing wrong.
    """
    code = _BY_ERRNO.get(error.errno or 0, "internal")
    return RefusedError(code, f"{path}: {error.strerror or error}")
