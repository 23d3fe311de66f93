"""cargo: registries by name, and sources that take the place of others."""

import re
import tomllib
from typing import Any

from poold.egress.registries.host import Findings, Host

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SPARSE = "sparse+"
_HOMES = ("/home/user", "/root")
_SECRETS = ("token", "secret-key", "credential-provider")

_Table = dict[str, Any]


def read(host: Host, found: Findings) -> None:
    config = _config(host, found)
    registries = {name: each for name, each in _tables(config, "registries").items() if _NAME.fullmatch(name)}
    sources = {name: each for name, each in _tables(config, "source").items() if _NAME.fullmatch(name)}
    if any(key in each for each in (*registries.values(), _table(config.get("registry"))) for key in _SECRETS):
        found.note("tokens are not given to guests")
    indexes = {name: _url(each.get("index"), f"registries.{name}.index", found) for name, each in registries.items()}
    urls = {name: _url(each.get("registry"), f"source.{name}.registry", found) for name, each in sources.items()}
    kept = {name for name, url in (*indexes.items(), *urls.items()) if url}
    lines = [line for name, url in indexes.items() if url for line in (f"[registries.{name}]", f'index = "{url}"')]
    for name, source in sources.items():
        end = _end(sources, source.get("replace-with"), kept)
        lines += _source(name, urls[name], end if end != name else None)
    if found.hosts:
        text = "".join(f"{line}\n" for line in lines)
        found.files |= {f"{home}/.cargo/config.toml": text for home in _HOMES}


def _source(name: str, url: str | None, replaced_with: str | None) -> list[str]:
    lines = [f'registry = "{url}"'] if url else []
    if replaced_with:
        lines.append(f'replace-with = "{replaced_with}"')
    return [f"[source.{name}]", *lines] if lines else []


def _end(sources: dict[str, _Table], name: object, kept: set[str]) -> str | None:
    """Where a chain of replacements ends, if that is a place that guests are told of."""
    for _ in sources:
        following = sources.get(name, {}).get("replace-with") if isinstance(name, str) else None
        if following is None:
            break
        name = following
    return name if isinstance(name, str) and name in kept else None


def _url(value: object, where: str, found: Findings) -> str | None:
    if not isinstance(value, str):
        return None
    url = found.url(value.removeprefix(_SPARSE), where)
    return None if url is None else f"{_SPARSE if value.startswith(_SPARSE) else ''}{url}"


def _config(host: Host, found: Findings) -> _Table:
    named = host.environ.get("CARGO_HOME")
    folder = host.path(named) if named else host.home / ".cargo"
    for name in ("config", "config.toml"):  # cargo takes the older name if both are there
        text = host.read(folder / name, found)
        if text is not None:
            try:
                return tomllib.loads(text)
            except (tomllib.TOMLDecodeError, RecursionError):
                found.note(f"{folder / name} is left out: it is not understood")
                return {}
    return {}


def _tables(config: _Table, key: str) -> dict[str, _Table]:
    return {name: _table(each) for name, each in _table(config.get(key)).items()}


def _table(value: object) -> _Table:
    return value if isinstance(value, dict) else {}
