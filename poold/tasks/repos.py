"""A repository as a caller names it, apart from the credentials that may be in its address. No I/O."""

from dataclasses import dataclass, field

from contract.errors import BadField
from poold.tasks.urls import Credentials, Url, read_url, redacted

FIELD = "repo"


@dataclass(frozen=True)
class Repo:
    """What may be shown of it, and what may not."""

    place: Url = field(repr=False)
    url: str  # without credentials
    credentials: Credentials | None = field(repr=False)

    @property
    def host(self) -> str:
        """A canonical name, or an address."""
        return self.place.host

    @property
    def port(self) -> int:
        return self.place.port


def read_repo(text: str, name: str = FIELD) -> Repo:
    """The repository that field `name` has. Raises `BadField`, whose value shows no password."""
    place = read_url(text, name)
    if "?" in place.target:
        raise BadField(name, redacted(text), "must have no query: credentials stand before the host")
    if not place.target.strip("/"):
        raise BadField(name, redacted(text), "must have the path of a repository")
    return Repo(place, str(place), place.credentials)
