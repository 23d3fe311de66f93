"""From a recipe to a build: which stages have to run, and running them.

Three stages, each with a key over its inputs: the kernel, the root file system without the guest, and the build, which
puts guest and root together. The first two ask the archive which versions are newest and so need the network; the key
of the build covers the versions they found. What is on the shelf under its key is not made again, and to know that
takes reading the inputs, nothing more.
"""

import functools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images import manifest
from images.debian import Archive, Package, Sources, as_json
from images.errors import ImageError
from images.filesystem import ROOT, make_filesystem
from images.guest import guest_hashes, guest_version, install_guest
from images.kernel import INITRAMFS, KERNEL, kernel_key, make_kernel
from images.keys import hashes_of, key_of
from images.npm import Fetcher
from images.npmrc import Settings, ask_npm
from images.programs import check_installed
from images.recipe import Recipe
from images.rootfs import TREE, make_root, root_key
from images.shelf import Shelf
from images.tree import fix_times, shadow

_STAGE_FILE = "stage.json"


@dataclass(frozen=True)
class Builder:
    """Builds images. `say` is given a line for each stage; a build that is there already says nothing."""

    recipes: Path
    guest: Path
    shelf: Shelf
    sources: Sources
    environ: Mapping[str, str]
    say: Callable[[str], None]

    def build(self, recipe: Recipe, *, refresh: bool = False) -> Path:
        """Return the folder of the current build of `recipe`, made now if it is not there.

        With `refresh`, packages are resolved anew, which gives another build if the archive has newer ones.
        If this raises or is killed, the image's former build is still the current one.
        """
        guest_version(self.guest)
        if not refresh and (found := self._finished(recipe)):
            return found
        if os.geteuid() != 0:
            raise ImageError(
                "building an image needs root: it makes files that belong to root", hint="run it with sudo"
            )
        check_installed()
        with self.shelf.open_for_building(waiting=lambda: self.say("another build is running; waiting for it")):
            if not refresh and (found := self._finished(recipe)):
                return found
            return self._make(recipe, refresh=refresh)

    def _finished(self, recipe: Recipe) -> Path | None:
        """Return the build that these inputs give, if it is the current one."""
        try:
            inputs = self._inputs(recipe, self._kernel(), self._root(recipe))
        except FileNotFoundError:
            # A stage that is not there, or is being replaced this moment.
            return None
        build = self.shelf.build(recipe.name, key_of(**inputs))
        return build if self.shelf.current(recipe.name) == build.resolve() else None

    def _make(self, recipe: Recipe, *, refresh: bool) -> Path:
        kernel, root = self._kernel(), self._root(recipe)
        if refresh or not kernel.is_dir():
            self._stage("kernel", kernel, lambda into, work: make_kernel(into, self.sources, work))
        if refresh or not root.is_dir():
            self._stage(f"{recipe.name}: root", root, lambda into, work: self._make_root(into, recipe, work))
        inputs = self._inputs(recipe, kernel, root)
        build = self.shelf.build(recipe.name, key_of(**inputs))
        if not build.is_dir():
            with self._timed(f"{recipe.name}: file system"), self.shelf.open_work() as work:
                self.shelf.put(self._assemble(recipe, kernel, root, inputs, work), build)
        self.shelf.point(recipe.name, build)
        self.shelf.drop_cached("kernel", but=kernel)
        self.shelf.drop_cached(f"root-{recipe.name}", but=root)
        return build

    def _make_root(self, into: Path, recipe: Recipe, work: Path) -> list[Package]:
        settings = Settings(self.environ)

        def debian() -> Path:
            Archive(self.sources, work / "apt").unpack("npm", work / "npm")
            return work / "npm"

        default = functools.cache(lambda: ask_npm(debian))
        fetcher = Fetcher(self.shelf.archives, work, lambda name: settings.registry(name, default), self.say)
        packages = make_root(into, recipe, self.sources, work, fetcher.archive)
        fetcher.forget_old(time.time())
        return packages

    def _kernel(self) -> Path:
        return self.shelf.cached("kernel", kernel_key(self.sources))

    def _root(self, recipe: Recipe) -> Path:
        return self.shelf.cached(f"root-{recipe.name}", root_key(recipe, self.sources))

    def _stage(self, title: str, place: Path, make: Callable[[Path, Path], list[Package]]) -> None:
        """Run a cached stage: what `make` leaves in its folder is put on the shelf with the packages it returns."""
        with self._timed(title), self.shelf.open_work() as work:
            since = int(time.time())
            into, scratch = work / "into", work / "scratch"
            into.mkdir()
            scratch.mkdir()
            packages = make(into, scratch)
            (into / _STAGE_FILE).write_text(json.dumps({"since": since, "packages": as_json(packages)}))
            self.shelf.put(into, place)

    def _inputs(self, recipe: Recipe, kernel: Path, root: Path) -> dict[str, Any]:
        own = [path for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".sh")]
        return {
            "recipes": hashes_of(recipe.files, relative_to=self.recipes),
            "builder": hashes_of(sorted(own), relative_to=Path(__file__).parent),
            "guest": {"version": guest_version(self.guest), "files": guest_hashes(self.guest)},
            "sources": self.sources.inputs(),
            "kernel": _stage_facts(kernel)["packages"],
            "packages": _stage_facts(root)["packages"],
            **recipe.supplied_inputs(),
        }

    def _assemble(self, recipe: Recipe, kernel: Path, root: Path, inputs: dict[str, Any], work: Path) -> Path:
        """Put root, guest and kernel together in a folder below `work`; return it."""
        started = time.time()
        key = key_of(**inputs)
        tree, made = work / "tree", work / "made"
        made.mkdir()
        shadow(root / TREE, tree)
        install_guest(self.guest, tree)
        if guest_hashes(self.guest) != inputs["guest"]["files"]:
            raise ImageError("the guest was changed while it was being installed", hint="build again")
        fix_times(tree, building_since=_stage_facts(root)["since"])
        make_filesystem(tree, made / ROOT, key=key, limit_mb=recipe.size_mb)
        for name in (KERNEL, INITRAMFS):
            # All images share one kernel, on disk and in the host's page cache.
            os.link(kernel / name, made / name)
        built = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "on": socket.gethostname(),
            "seconds": round(time.time() - started, 1),
        }
        facts = manifest.describe(
            made, recipe, key=key, inputs=inputs, built=built, kernel=KERNEL, initramfs=INITRAMFS, rootfs=ROOT
        )
        manifest.write(made, facts)
        return made

    @contextmanager
    def _timed(self, title: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.say(f"{title:<24} {time.monotonic() - started:6.1f} s")


def _stage_facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / _STAGE_FILE).read_text())
    return facts
