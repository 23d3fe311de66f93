"""Which npm registry this host uses, as its own npm configuration says it: no registry is written down here.

Asked in this order: npm's variables, the user's `.npmrc`, `/etc/npmrc`, the `npm` program if there is one, and at last
Debian's `npm` package, which is unpacked and not installed, for the default that npm comes with.
"""

import base64
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from images.errors import ImageError
from images.programs import run

_VARIABLE = re.compile(r"\$\{([A-Za-z0-9_]+)\}")
_DEFAULT_FILE = "usr/share/nodejs/npm/node_modules/npm-registry-fetch/lib/default-opts.js"
_DEFAULT = re.compile(r"""registry:\s*['"](https://[^'"]+)['"]""")
_HINT = "name it in npm_config_registry, or as `registry=https://…` in ~/.npmrc or /etc/npmrc"


@dataclass(frozen=True)
class Registry:
    """Where packages come from. `secret` is the Authorization header for it, never shown."""

    url: str  # ends with "/"
    secret: str | None = field(default=None, repr=False)
    cafile: Path | None = None

    def serves(self, url: str) -> bool:
        """Whether `url` is one of this registry's own, which may see its secret."""
        return url.startswith(self.url)


class Settings:
    """npm's settings on this host. A variable comes before the user's file, and that before everybody's."""

    def __init__(self, environ: Mapping[str, str], root: Path = Path("/")) -> None:
        self._environ = environ
        self._root = root
        home = environ.get("HOME", "/root")
        self._values: dict[str, str] = {}
        for name, usual in (("globalconfig", "/etc/npmrc"), ("userconfig", f"{home}/.npmrc")):
            self._values |= self._read(self._variable(name) or usual)

    def registry(self, package: str, ask: Callable[[], str]) -> Registry:
        """The registry that `package` comes from. `ask` tells the default where no setting does."""
        scope = package.partition("/")[0] if package.startswith("@") else None
        told = self._values.get(f"{scope}:registry") if scope else None
        url = told or self._variable("registry") or self._values.get("registry") or ask()
        plain, own = _without_secret(url)
        cafile = self._variable("cafile") or self._values.get("cafile")
        return Registry(plain, own or self._secret(plain), self._path(cafile) if cafile else None)

    def _variable(self, name: str) -> str | None:
        """npm takes its variables in small and in capital letters."""
        return self._environ.get(f"npm_config_{name}") or self._environ.get(f"NPM_CONFIG_{name.upper()}")

    def _path(self, text: str) -> Path:
        return self._root / text.lstrip("/")

    def _read(self, text: str) -> dict[str, str]:
        try:
            lines = self._path(text).read_text().splitlines()
        except OSError:
            return {}
        except UnicodeDecodeError as exc:
            raise ImageError(f"{text}: is not text: {exc}") from exc
        pairs = (line.partition("=") for line in lines if not line.lstrip().startswith((";", "#")))
        return {key.strip(): self._expanded(value.strip().strip("\"'")) for key, _, value in pairs}

    def _expanded(self, value: str) -> str:
        return _VARIABLE.sub(lambda match: self._environ.get(match[1], match[0]), value)

    def _secret(self, url: str) -> str | None:
        """The Authorization header that is kept for `url` or for what is above it."""
        parts = urlsplit(url)
        path = parts.path.rstrip("/")
        while True:
            prefix = f"//{parts.netloc}{path}/:"
            own = {key.removeprefix(prefix): value for key, value in self._values.items() if key.startswith(prefix)}
            if (header := _header(own)) is not None:
                return header
            if not path:
                return None
            path = path.rpartition("/")[0]


def _header(own: Mapping[str, str]) -> str | None:
    if "_authToken" in own:
        return f"Bearer {own['_authToken']}"
    if "_auth" in own:
        return f"Basic {own['_auth']}"
    if "username" in own and "_password" in own:
        return _basic(own["username"], base64.b64decode(own["_password"]).decode())
    return None


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _without_secret(url: str) -> tuple[str, str | None]:
    """The registry's address with a "/" at its end, and the header that its name and password make."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # Not shown as a whole: it may have a password in it.
        raise ImageError(f"npm's registry = {url[:8]!r}…: must begin with http:// or https://", hint=_HINT)
    host = parts.netloc.rpartition("@")[2]
    plain = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/", "", ""))
    if parts.username is None:
        return plain, None
    return plain, _basic(unquote(parts.username), unquote(parts.password or ""))


def ask_npm(unpack_debian: Callable[[], Path]) -> str:
    """npm's own default, as the program says it, or as Debian's package has it: `unpack_debian` gives its files."""
    if shutil.which("npm"):
        return run(["npm", "config", "get", "registry"]).decode().strip()
    file = unpack_debian() / _DEFAULT_FILE
    match = _DEFAULT.search(file.read_text()) if file.is_file() else None
    if match is None:
        raise ImageError("this host has no npm configuration that names a registry", hint=_HINT)
    return match[1]
