"""Where what the system says becomes what an engine says."""

import contextlib
from collections.abc import Iterator

from poold.errors import EngineError, HostFault


@contextlib.contextmanager
def as_engine_errors(doing: str, subject: str) -> Iterator[None]:
    try:
        yield
    except EngineError:
        raise
    except (OSError, HostFault) as error:
        raise EngineError(doing, subject, hint=str(error) or type(error).__name__) from error
