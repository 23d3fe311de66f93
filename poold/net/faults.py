"""Turns what the kernel says into `NetError`, with what helps."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from poold.errors import NetError

_ADVICE = {
    errno.EPERM: "poold makes network namespaces: run it as root",
    errno.EACCES: "poold makes network namespaces: run it as root",
    errno.EMFILE: "raise LimitNOFILE",
}


@contextmanager
def translated(doing: str, subject: object, advice: Mapping[int, str] | None = None) -> Iterator[None]:
    """Raise `NetError` for an `OSError` of the block; `advice` says, by errno, what helps."""
    try:
        yield
    except OSError as exc:
        known = _ADVICE | dict(advice or {})
        said = exc.strerror or str(exc)
        help_ = known.get(exc.errno or 0)
        raise NetError(doing, str(subject), hint=f"{said}; {help_}" if help_ else said) from exc
