"""`python -m images`: build the images that machines boot from, list them, find them.

Environment:
    WARREN_IMAGES        where results stand; `build/images` in the repository unless set
    WARREN_APT_SOURCES   an apt sources file (.list or .sources) to use in place of the host's Debian mirror
    WARREN_CURSOR        the archive of Cursor's command line agent, to put it into the image `agent`
    npm_config_registry  the npm registry, if npm's own configuration on this host names none
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from images import manifest
from images.build import Builder
from images.debian import Sources
from images.errors import ImageError
from images.recipe import known_images, load
from images.shelf import Shelf

_RECIPES = Path(__file__).resolve().parent
_REPOSITORY = _RECIPES.parent


def main() -> int:
    asked = _parser().parse_args()
    # As an error, so that every block is left in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    shelf = Shelf(Path(asked.out).resolve())
    try:
        match asked.command:
            case "build":
                _build(shelf, _sources(os.environ), asked.names, refresh=asked.refresh)
            case "ls":
                _list(shelf, as_json=asked.json)
            case "path":
                print(_path(shelf, asked.name))
    except ImageError as exc:
        print(f"images: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("images: interrupted; nothing of this build remains", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m images", description="Build and find machine images.")
    out = argparse.ArgumentParser(add_help=False)
    default = os.environ.get("WARREN_IMAGES") or str(_REPOSITORY / "build/images")
    out.add_argument("--out", metavar="DIR", default=default, help="where results stand (WARREN_IMAGES; %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", parents=[out], help="build images that are not there yet")
    build.add_argument("names", metavar="NAME", nargs="+")
    build.add_argument("--refresh", action="store_true", help="resolve packages anew, for security updates")
    listing = commands.add_parser("ls", parents=[out], help="list images and their current builds")
    listing.add_argument("--json", action="store_true", help="as JSON, one list")
    path = commands.add_parser("path", parents=[out], help="print the folder of an image's current build")
    path.add_argument("name", metavar="NAME")
    return parser


def _sources(environment: Mapping[str, str]) -> Sources:
    named = environment.get("WARREN_APT_SOURCES")
    if not named:
        return Sources(override=None)
    path = Path(named)
    if not path.is_file() or path.suffix not in (".list", ".sources"):
        raise ImageError(f"WARREN_APT_SOURCES = {named!r}: must name a .list or .sources file")
    return Sources(override=path)


def _build(shelf: Shelf, sources: Sources, names: list[str], *, refresh: bool) -> None:
    # All of them are read before any is built: a mistake in the last must not cost the time of the first.
    recipes = [load(_RECIPES, name, environ=os.environ) for name in names]
    builder = Builder(
        _RECIPES, _REPOSITORY / "guest", shelf, sources, os.environ, say=lambda line: print(line, flush=True)
    )
    for recipe in recipes:
        builder.build(recipe, refresh=refresh)


def _list(shelf: Shelf, *, as_json: bool) -> None:
    rows = [_row(shelf, name) for name in known_images(_RECIPES)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        size = f"{row['bytes'] // 1_000_000} MB" if isinstance(row["bytes"], int) else "not built"
        print(f"{row['name']:<16} {str(row['key'] or '-')[:12]:<14} {size:>10}  {row['path'] or ''}".rstrip())


def _row(shelf: Shelf, name: str) -> dict[str, object]:
    folder = shelf.current(name)
    if folder is None:
        return {"name": name, "key": None, "path": None, "bytes": None, "built_at": None}
    facts = manifest.read(folder)
    size = facts["files"][facts["rootfs"]]["bytes"]
    return {"name": name, "key": facts["key"], "path": str(folder), "bytes": size, "built_at": facts["built"]["at"]}


def _path(shelf: Shelf, name: str) -> Path:
    recipe = load(_RECIPES, name)
    folder = shelf.current(recipe.name)
    if folder is None:
        raise ImageError(f"image {name!r} is not built", hint=f"python -m images build {name}")
    return folder


if __name__ == "__main__":
    sys.exit(main())
