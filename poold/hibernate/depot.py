"""Where machines are that hibernate: put there, looked at, and brought back."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from contract.errors import BadField
from contract.models import MACHINE, Hibernated, Sandbox
from poold.engines import Engine, Parts
from poold.hibernate import disks, manifest, packing, rows, unpacking
from poold.hibernate.blocking import in_thread
from poold.hibernate.errors import Damaged, NotOurs
from poold.hibernate.goldens import FOLDER as GOLDENS
from poold.hibernate.goldens import Goldens, Notes
from poold.hibernate.manifest import File, Manifest
from poold.hibernate.packing import Told
from poold.images import Image, Images
from poold.store import Progress, Store, silent
from poold.store.errors import Corrupt, NoObject

FOLDER = "hibernated"
DRIVE = "drive"  # the file of a machine with what a person wants back
ARCHIVE = "files"  # of files alone, the only one


@dataclass(frozen=True)
class Drive:
    """The disk of a machine, or the archive of its files: which parts cannot be read, and the rest, in zstd."""

    kind: str
    damaged: tuple[str, ...]
    chunks: AsyncIterator[bytes]


class Depot:
    """Machines of one engine in one store. `folder` is for golden memories, on the same disk as machines."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        images: Images,
        folder: Path,
        *,
        cluster: str,
        notes: Notes,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._engine = engine
        self._images = images
        self._cluster = cluster
        self._notes = notes
        self._entropy = entropy
        self._spools = folder.with_name("spools")
        self._goldens = Goldens(store, folder, notes, entropy)
        self._under_way: set[str] = set()

    @property
    def store(self) -> Store:
        return self._store

    def new_place(self, sandbox: Sandbox) -> str:
        """Where nothing is yet, and nothing of an earlier attempt can arrive late."""
        return f"{FOLDER}/{sandbox.id}/{sandbox.generation}-{self._entropy(8).hex()}/"

    @contextlib.contextmanager
    def writing(self, prefix: str) -> Iterator[None]:
        """What is below `prefix` is not swept away during the block."""
        self._under_way.add(prefix)
        try:
            yield
        finally:
            self._under_way.discard(prefix)

    async def put(self, sandbox: Sandbox, prefix: str, at_ms: int, progress: Progress = silent) -> Hibernated:
        """Put the sandbox's saved machine into the store, and read it back from there. What is on disk stays as it is.

        Whoever calls this has written down that `prefix` is to be removed if this raises or is cut short.
        """
        machine_id = sandbox.machine or ""
        parts = await self._engine.parts(machine_id)
        golden = await self._goldens.keep(parts.golden)
        told = Told(progress, await in_thread("looking at", machine_id, _allocated, parts))
        files = {name: await packing.pack(self._store, prefix, name, path, told) for name, path in parts.files.items()}
        found = await self._put(sandbox, prefix, files, parts.facts, golden=golden, at_ms=at_ms)
        # Once more, now that the manifest names it: who looked for names before that may have swept it away.
        await self._goldens.keep(parts.golden)
        return found

    async def put_files(
        self, sandbox: Sandbox, prefix: str, archive: Path, *, at_ms: int, build: str, progress: Progress = silent
    ) -> Hibernated:
        """As `put`, of the files alone of a machine whose image was of that build: a tar archive, on disk here."""
        told = Told(progress, (await asyncio.to_thread(archive.stat)).st_size)
        files = {ARCHIVE: await packing.pack(self._store, prefix, ARCHIVE, archive, told)}
        facts = {"shape": orjson.loads(orjson.dumps(sandbox.shape)), "build": build}
        return await self._put(sandbox, prefix, files, facts, golden=None, at_ms=at_ms)

    async def _put(
        self,
        sandbox: Sandbox,
        prefix: str,
        files: Mapping[str, File],
        facts: Mapping[str, Any],
        *,
        golden: str | None,
        at_ms: int,
    ) -> Hibernated:
        """The manifest, last; then all of it is read back."""
        engine, row, machine = self._engine.name, rows.encode(sandbox), sandbox.machine or ""
        whole = Manifest(
            self._cluster, sandbox.id, machine, sandbox.generation, at_ms, engine, facts, row, golden, files
        )
        data = manifest.encode(whole)
        key = prefix + manifest.FILE
        await self._store.create(key, data)
        found = _found(key, data, whole)
        await self._read_back(found, prefix)
        return found

    async def _read_back(self, found: Hibernated, prefix: str) -> None:
        whole = await self.manifest(found)
        await packing.check(self._store, prefix, whole.files.values(), Told(silent, 0))

    async def sandbox_of(self, key: str) -> Sandbox:
        """The sandbox whose manifest is in the store under `key`, for a host that never heard of it."""
        data = await self._read(key)
        whole = self._ours(key, manifest.decode_manifest(key, data))
        if not key.startswith(f"{FOLDER}/{whole.sandbox}/"):
            raise NotOurs(key, f"it is of sandbox {whole.sandbox} and stands elsewhere")
        found = _found(key, data, whole)
        more = {"id": whole.sandbox, "machine": whole.machine, "generation": whole.generation, "hibernated": found}
        return rows.decode(key, whole.row, **more)

    async def manifest(self, found: Hibernated) -> Manifest:
        """What was hibernated. Raises `Damaged` or `NotOurs`."""
        data = await self._read(found.key)
        whole = manifest.decode_manifest(found.key, data)
        if hashlib.sha256(data).hexdigest() != found.sha256:
            raise Damaged(found.key, "it is not the manifest that the ledger knows of")
        return self._ours(found.key, whole)

    async def _read(self, key: str) -> bytes:
        try:
            return (await self._store.get(key)).data
        except (NoObject, Corrupt) as error:
            raise Damaged(key, "it is missing" if isinstance(error, NoObject) else error.problem) from error

    def _ours(self, key: str, whole: Manifest) -> Manifest:
        if whole.cluster != self._cluster:
            raise NotOurs(key, f"it is of cluster {whole.cluster!r} and this host of {self._cluster!r}")
        return whole

    async def fetch(self, sandbox: Sandbox, found: Hibernated, progress: Progress = silent) -> None:
        """Put the sandbox's machine together on this host, saved. If this raises, nothing of it is here.

        What is in the store stays as it is.
        """
        whole = await self.manifest(found)
        image = self._checked(sandbox, found, whole)
        if whole.golden is None:
            raise NotOurs(found.key, "it is of files alone")
        memory = await self._goldens.fetch(whole.golden)
        prefix = _beside(found.key)
        told = Told(progress, whole.stored_bytes)
        async with self._engine.planting(whole.machine, whole.facts, image, memory) as paths:
            if paths.keys() != whole.files.keys():
                raise Damaged(found.key, f"it has the files {sorted(whole.files)} and not {sorted(paths)}")
            for name, path in paths.items():
                await unpacking.unpack(self._store, prefix, whole.files[name], path, told)

    @contextlib.asynccontextmanager
    async def files(self, sandbox: Sandbox, found: Hibernated, progress: Progress = silent) -> AsyncIterator[Path]:
        """The archive of the sandbox's files on this host's disk, checked as a whole, during the block."""
        whole = await self.manifest(found)
        image = self._find_image(sandbox, found, whole)
        if whole.files.keys() != {ARCHIVE}:
            raise Damaged(found.key, f"it has the files {sorted(whole.files)} and not {[ARCHIVE]}")
        if whole.facts.get("build") != image.key:
            problem = f"it needs the build {whole.facts.get('build')!s:.80} of image {image.name!r}, and this host has"
            raise NotOurs(found.key, f"{problem} {image.key}; with the former it comes back, and its files can be read")
        async with self.spool() as path:
            told = Told(progress, whole.stored_bytes)
            await unpacking.unpack(self._store, _beside(found.key), whole.files[ARCHIVE], path, told)
            yield path

    @contextlib.asynccontextmanager
    async def spool(self) -> AsyncIterator[Path]:
        """The name of a file that is not there yet, on this host's disk. After the block it is gone."""
        path = self._spools / self._entropy(8).hex()
        await in_thread("making", str(self._spools), lambda: self._spools.mkdir(0o700, parents=True, exist_ok=True))
        try:
            yield path
        finally:
            await in_thread("removing", str(path), lambda: path.unlink(missing_ok=True))

    def _checked(self, sandbox: Sandbox, found: Hibernated, whole: Manifest) -> Image:
        """The image of the machine, if it is the sandbox's and can be loaded here."""
        if whole.machine != sandbox.machine:
            raise NotOurs(found.key, f"it is the machine {whole.machine!r} and not that of {sandbox.id}")
        image = self._find_image(sandbox, found, whole)
        self._engine.check_fits(whole.machine, whole.facts, image)
        return image

    def _find_image(self, sandbox: Sandbox, found: Hibernated, whole: Manifest) -> Image:
        """That of the machine, if it is the sandbox's and of an engine like ours."""
        shape = orjson.loads(orjson.dumps(sandbox.shape))
        if (whole.sandbox, whole.facts.get("shape")) != (sandbox.id, shape):
            raise NotOurs(found.key, f"it is of {whole.sandbox!r} and not of {sandbox.id}")
        if whole.engine != self._engine.name:
            raise NotOurs(found.key, f"it is a machine of the engine {whole.engine!r}")
        try:
            return self._images.find(sandbox.shape.image)
        except BadField as error:
            raise NotOurs(found.key, f"its image is not on this host: {error.message}") from error

    async def drive(self, found: Hibernated) -> "Drive":
        """The machine's disk, or the archive of its files. Nothing else is needed. Raises `Damaged` or `NotOurs`."""
        whole = await self.manifest(found)
        name = DRIVE if whole.kind == MACHINE else ARCHIVE
        if name not in whole.files:
            raise Damaged(found.key, f"it has no {name}")
        file, prefix = whole.files[name], _beside(found.key)
        damaged = await disks.damaged_parts(self._store, prefix, file)
        return Drive(whole.kind, tuple(damaged), disks.stream(self._store, prefix, file, damaged))

    def is_writing(self, prefix: str) -> bool:
        return prefix in self._under_way or prefix in self._goldens.under_way

    async def remove(self, prefix: str) -> bool:
        """Remove what is below `prefix`, which nobody wants. False: it is being written just now."""
        if self.is_writing(prefix):
            return False
        if not prefix.startswith(f"{GOLDENS}/") or not await self._goldens.is_counted(prefix):
            keys = [entry.key async for entry in self._store.list(prefix)]
            for key in keys:
                await self._store.delete(key)
        return True


def _found(key: str, data: bytes, whole: Manifest) -> Hibernated:
    sha256 = hashlib.sha256(data).hexdigest()
    return Hibernated(key, sha256, whole.stored_bytes + len(data), whole.at_ms, whole.kind)


def _beside(key: str) -> str:
    return key.removesuffix(manifest.FILE)


def _allocated(parts: Parts) -> int:
    """The bytes that the files have on disk: about what there is to do."""
    return sum(path.stat().st_blocks * 512 for path in parts.files.values())
