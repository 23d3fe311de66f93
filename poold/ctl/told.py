"""How what fails without poold is told: as one error of pooldctl, with what was being done."""

from collections.abc import Iterator
from contextlib import contextmanager

from contract.errors import BadField, NotFound, WarrenError
from poold.ctl.errors import CtlError, NoSuchThing, UsageError
from poold.errors import ConfigError


@contextmanager
def told(doing: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read has enough, which the front door knows how to end with
    except BadField as error:
        raise UsageError(f"{doing}: {error.message}") from None
    except NotFound as error:
        raise NoSuchThing(f"{doing}: {error.message}") from None
    except FileNotFoundError as error:
        raise NoSuchThing(f"{doing}: there is no {error.filename}") from None
    except (WarrenError, ConfigError) as error:
        raise CtlError(f"{doing}: {error}") from None
    except OSError as error:
        raise CtlError(f"{doing}: {error.strerror} ({error.filename})") from None
