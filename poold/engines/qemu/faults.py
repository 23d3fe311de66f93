"""Where what the system says becomes what an engine says."""

import contextlib
from collections.abc import Iterator

from poold.errors import EngineError, NetError


@contextlib.contextmanager
def as_engine_errors(doing: str, subject: str) -> Iterator[None]:
    try:
        yield
    except (OSError, NetError) as error:
        raise EngineError(doing, subject, hint=str(error) or type(error).__name__) from error
