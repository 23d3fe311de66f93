"""What an image is made of: `image.toml`, read and checked as a whole before anything is built.

An image with a `base` has all that the base has, and then its own: packages and users are added, setup steps come after
the base's, sizes are its own.
"""

import re
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from contract.errors import BadField
from contract.network import Network
from images.errors import ImageError
from images.keys import sha256_of

FILE_NAME = "image.toml"

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")
_NPM_NAME = re.compile(r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*")
_NPM_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?")
_INTEGRITY = re.compile(r"sha512-[A-Za-z0-9+/]{86}==")
_VARIABLE = re.compile(r"WARREN_[A-Z_]+")
# In an archive: the whole of it, or a path without "..".
_PICK = re.compile(r"\.|(?!.*\.\.)[A-Za-z0-9@_][A-Za-z0-9@._/-]*")
# Where what does not come from Debian goes: nothing of Debian's is ever there.
_OWN_PLACE = re.compile(r"/(usr/local|opt)(?!.*\.\.)(/[A-Za-z0-9@._-]+)+")


@dataclass(frozen=True)
class User:
    """An account with a group of the same name and number. Below 1000 it is a program's, and nobody logs in as it."""

    name: str
    uid: int
    home: str
    shell: str
    sudo: bool

    @property
    def is_system(self) -> bool:
        return self.uid < 1000


@dataclass(frozen=True)
class Defaults:
    """The size of a machine for which none was asked."""

    vcpus: int
    memory_mb: int
    disk_mb: int


@dataclass(frozen=True)
class NpmPackage:
    """One version of a package of the npm registry. `files`: from a path in it, or "." for all, to one in the image."""

    name: str
    version: str
    integrity: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Supplied:
    """An archive that the operator has and we may not pass on, put into `folder` if a variable names it."""

    variable: str
    folder: str
    programs: tuple[str, ...]  # files of it that must be there, linked from /usr/local/bin
    archive: Path | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Recipe:
    """One image, its bases already folded in. `files` are the `image.toml` it was read from, the base's first."""

    name: str
    base: str | None
    packages: tuple[str, ...]
    users: tuple[User, ...]
    setup: tuple[str, ...]
    size_mb: int
    defaults: Defaults
    files: tuple[Path, ...]
    network: Mapping[str, object] | None = None  # what its machines reach if nobody asks, and at most
    npm: tuple[NpmPackage, ...] = ()
    supplied: tuple[Supplied, ...] = ()

    def root_inputs(self) -> dict[str, object]:
        """Return what decides the content of the root file system, as JSON values: sizes are not among it."""
        return {
            "packages": list(self.packages),
            "users": [asdict(user) for user in self.users],
            "setup": list(self.setup),
            "npm": [asdict(package) for package in self.npm],
            **self.supplied_inputs(),
        }

    def supplied_inputs(self) -> dict[str, object]:
        """Return what the operator supplied, as JSON values, if anything: known by its content."""
        given = [
            {"variable": each.variable, "folder": each.folder, "programs": list(each.programs), "sha256": each.sha256}
            for each in self.supplied
            if each.archive is not None
        ]
        return {"supplied": given} if given else {}


def known_images(folder: Path) -> list[str]:
    """Return the names of the images that `folder` has a file for."""
    return sorted(path.parent.name for path in folder.glob(f"*/{FILE_NAME}"))


def load(folder: Path, name: str, *, environ: Mapping[str, str] | None = None, above: tuple[str, ...] = ()) -> Recipe:
    """Read the image called `name`, with its bases. Raises `ImageError` naming the file, the field and the value.

    `environ` has the variables that switch on what the operator supplies.
    """
    if name not in (known := known_images(folder)):
        raise ImageError(f"there is no image called {name!r}", hint=f"known: {', '.join(known)}")
    if name in above:
        raise ImageError(f"image {name!r} is its own base: {' → '.join([*above, name])}")
    path = folder / name / FILE_NAME
    own = _read(path, environ or {})
    if own.base is None:
        return own
    if own.base not in known:
        raise ImageError(f"{path}: base = {own.base!r}: no such image", hint=f"known: {', '.join(known)}")
    return _fold(load(folder, own.base, environ=environ, above=(*above, name)), own)


def _fold(base: Recipe, own: Recipe) -> Recipe:
    taken = {user.name for user in base.users} & {user.name for user in own.users}
    if taken:
        raise ImageError(f"{own.files[-1]}: users = {sorted(taken)}: the base {base.name!r} has them already")
    return Recipe(
        name=own.name,
        base=own.base,
        packages=tuple(sorted({*base.packages, *own.packages})),
        users=base.users + own.users,
        setup=base.setup + own.setup,
        size_mb=own.size_mb,
        defaults=own.defaults,
        files=base.files + own.files,
        network=own.network if own.network is not None else base.network,
        npm=base.npm + own.npm,
        supplied=base.supplied + own.supplied,
    )


def _read(path: Path, environ: Mapping[str, str]) -> Recipe:
    try:
        fields = _Fields(tomllib.loads(path.read_text()), str(path))
    except tomllib.TOMLDecodeError as exc:
        raise ImageError(f"{path}: not valid TOML: {exc}") from exc
    recipe = Recipe(
        name=fields.text("name", _NAME),
        base=fields.text("base", _NAME) if fields.has("base") else None,
        packages=tuple(sorted(set(fields.texts("packages", _PACKAGE)))),
        users=tuple(_user(each) for each in fields.tables("users")),
        setup=tuple(fields.texts("setup")),
        size_mb=fields.number("size_mb", 16, 65_536),
        defaults=_defaults(fields.table("defaults")),
        files=(path,),
        network=_network(fields) if fields.has("network") else None,
        npm=tuple(_npm(each) for each in fields.tables("npm")),
        supplied=tuple(_supplied(each, environ) for each in fields.tables("supplied")),
    )
    fields.end()
    if recipe.name != path.parent.name:
        raise ImageError(f"{path}: name = {recipe.name!r}: must be that of its folder, {path.parent.name!r}")
    return recipe


def _network(fields: "_Fields") -> Mapping[str, object]:
    """A policy as hosts read it."""
    value = fields.values("network")
    try:
        return Network.decode(value).view()
    except BadField as exc:
        raise fields.refusal("network", value, str(exc)) from None


def _npm(fields: "_Fields") -> NpmPackage:
    package = NpmPackage(
        name=fields.text("name", _NPM_NAME),
        version=fields.text("version", _NPM_VERSION),
        integrity=fields.text("integrity", _INTEGRITY),
        files=fields.places("files"),
    )
    fields.end()
    return package


def _supplied(fields: "_Fields", environ: Mapping[str, str]) -> Supplied:
    variable = fields.text("variable", _VARIABLE)
    archive = _archive(variable, environ.get(variable))
    supplied = Supplied(
        variable=variable,
        folder=fields.text("folder", _OWN_PLACE),
        programs=tuple(fields.texts("programs", _PICK)),
        archive=archive,
        sha256=sha256_of(archive) if archive else None,
    )
    fields.end()
    return supplied


def _archive(variable: str, text: str | None) -> Path | None:
    """What a variable names, or None if it is not set or empty."""
    if not text:
        return None
    path = Path(text)
    if not path.is_absolute() or not path.is_file() or not tarfile.is_tarfile(path):
        raise ImageError(f"{variable} = {text!r}: must be the absolute path of a .tar.gz archive")
    return path


def _user(fields: "_Fields") -> User:
    user = User(
        name=fields.text("name", _NAME),
        # Below 1000 are accounts of programs, of which Debian counts its own up from 100; 65534 is nobody.
        uid=fields.number("uid", 900, 60_000),
        home=fields.text("home", _PATH),
        shell=fields.text("shell", _PATH),
        sudo=fields.flag("sudo"),
    )
    fields.end()
    if user.is_system and user.sudo:
        raise fields.refusal("sudo", user.sudo, f"an account of a program (uid {user.uid}) may not become root")
    return user


def _defaults(fields: "_Fields") -> Defaults:
    defaults = Defaults(
        vcpus=fields.number("vcpus", 1, 64),
        memory_mb=fields.number("memory_mb", 128, 1_048_576),
        disk_mb=fields.number("disk_mb", 64, 1_048_576),
    )
    fields.end()
    return defaults


class _Fields:
    """One table of an `image.toml`, taken field by field. Every refusal names the file, the field and the value."""

    def __init__(self, table: Mapping[str, object], where: str) -> None:
        self._left = dict(table)
        self._where = where

    def has(self, field: str) -> bool:
        return field in self._left

    def text(self, field: str, pattern: re.Pattern[str]) -> str:
        value = self._take(field)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self.refusal(field, value, f"must be text like {pattern.pattern}")
        return value

    def texts(self, field: str, pattern: re.Pattern[str] | None = None) -> list[str]:
        """Return a list of texts; an absent field is an empty list."""
        values = self._left.pop(field, [])
        if not isinstance(values, list):
            raise self.refusal(field, values, "must be a list")
        for value in values:
            if not isinstance(value, str) or not value or (pattern and not pattern.fullmatch(value)):
                raise self.refusal(field, value, f"must be text like {pattern.pattern if pattern else 'a shell line'}")
        return values

    def number(self, field: str, low: int, high: int) -> int:
        value = self._take(field)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refusal(field, value, f"must be a whole number from {low} to {high}")
        return value

    def flag(self, field: str) -> bool:
        value = self._take(field)
        if not isinstance(value, bool):
            raise self.refusal(field, value, "must be true or false")
        return value

    def table(self, field: str) -> "_Fields":
        value = self._take(field)
        if not isinstance(value, dict):
            raise self.refusal(field, value, "must be a table")
        return _Fields(value, f"{self._where}: {field}")

    def values(self, field: str) -> dict[str, object]:
        """Return a table as it is."""
        value = self._take(field)
        if not isinstance(value, dict):
            raise self.refusal(field, value, "must be a table")
        return value

    def places(self, field: str) -> dict[str, str]:
        """Return a table of paths in the image by paths in an archive."""
        values = self.values(field)
        if not values:
            raise self.refusal(field, values, "must name something")
        for source, target in values.items():
            if not _PICK.fullmatch(source):
                raise self.refusal(field, source, 'must be a path in the archive, or "."')
            if not isinstance(target, str) or not _OWN_PLACE.fullmatch(target):
                raise self.refusal(f"{field}.{source}", target, "must be a path below /usr/local or /opt")
        return {source: str(target) for source, target in values.items()}

    def tables(self, field: str) -> list["_Fields"]:
        """Return a list of tables; an absent field is an empty list."""
        values = self._left.pop(field, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.refusal(field, values, "must be a list of tables")
        return [_Fields(value, f"{self._where}: {field}[{index}]") for index, value in enumerate(values)]

    def end(self) -> None:
        """Refuse what nobody asked for: a misspelt field must not be passed over in silence."""
        for field, value in self._left.items():
            raise self.refusal(field, value, "no such field")

    def _take(self, field: str) -> object:
        if field not in self._left:
            raise ImageError(f"{self._where}: {field}: is missing")
        return self._left.pop(field)

    def refusal(self, field: str, value: object, why: str) -> ImageError:
        return ImageError(f"{self._where}: {field} = {value!r}: {why}")
