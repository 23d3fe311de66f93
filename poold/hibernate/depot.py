"""Where machines are that hibernate: put there, looked at, and brought back."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from contract.errors import BadField
from contract.models import Hibernated, Sandbox
from poold.engines import Engine, Parts
from poold.hibernate import disks, manifest, packing, rows, unpacking
from poold.hibernate.blocking import in_thread
from poold.hibernate.errors import Damaged, NotOurs
from poold.hibernate.goldens import FOLDER as GOLDENS
from poold.hibernate.goldens import Goldens, Notes
from poold.hibernate.manifest import Manifest
from poold.hibernate.packing import Told
from poold.images import Image, Images
from poold.store import Progress, Store, silent
from poold.store.errors import Corrupt, NoObject

FOLDER = "hibernated"
DRIVE = "drive"  # the file of a machine with what a person wants back


@dataclass(frozen=True)
class Drive:
    """The disk of a machine: which parts of it cannot be read, and the rest, in zstd."""

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
        self._goldens = Goldens(store, folder, notes, entropy)
        self._under_way: set[str] = set()

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
        whole = Manifest(
            self._cluster,
            sandbox.id,
            machine_id,
            sandbox.generation,
            at_ms,
            self._engine.name,
            parts.facts,
            rows.encode(sandbox),
            golden,
            files,
        )
        data = manifest.encode(whole)
        key = prefix + manifest.FILE
        await self._store.create(key, data)
        found = Hibernated(key, hashlib.sha256(data).hexdigest(), whole.stored_bytes + len(data), at_ms)
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
        found = Hibernated(key, hashlib.sha256(data).hexdigest(), whole.stored_bytes + len(data), whole.at_ms)
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
        memory = await self._goldens.fetch(whole.golden)
        prefix = _beside(found.key)
        told = Told(progress, whole.stored_bytes)
        async with self._engine.planting(whole.machine, whole.facts, image, memory) as paths:
            if paths.keys() != whole.files.keys():
                raise Damaged(found.key, f"it has the files {sorted(whole.files)} and not {sorted(paths)}")
            for name, path in paths.items():
                await unpacking.unpack(self._store, prefix, whole.files[name], path, told)

    def _checked(self, sandbox: Sandbox, found: Hibernated, whole: Manifest) -> Image:
        """The image of the machine, if it is the sandbox's and can be loaded here."""
        shape = orjson.loads(orjson.dumps(sandbox.shape))
        if (whole.sandbox, whole.machine, whole.facts.get("shape")) != (sandbox.id, sandbox.machine, shape):
            raise NotOurs(found.key, f"it is a machine of {whole.sandbox!r} and not of {sandbox.id}")
        if whole.engine != self._engine.name:
            raise NotOurs(found.key, f"it is a machine of the engine {whole.engine!r}")
        try:
            image = self._images.find(sandbox.shape.image)
        except BadField as error:
            raise NotOurs(found.key, f"its image is not on this host: {error.message}") from error
        self._engine.check_fits(whole.machine, whole.facts, image)
        return image

    async def drive(self, found: Hibernated) -> "Drive":
        """The machine's disk, for which no other file and no golden memory is needed. Raises `Damaged` or `NotOurs`."""
        whole = await self.manifest(found)
        if DRIVE not in whole.files:
            raise Damaged(found.key, "it has no drive")
        file, prefix = whole.files[DRIVE], _beside(found.key)
        damaged = await disks.damaged_parts(self._store, prefix, file)
        return Drive(tuple(damaged), disks.stream(self._store, prefix, file, damaged))

    async def remove(self, prefix: str) -> bool:
        """Remove what is below `prefix`, which nobody wants. False: it is being written just now."""
        if prefix in self._under_way or prefix in self._goldens.under_way:
            return False
        if not prefix.startswith(f"{GOLDENS}/") or not await self._goldens.is_counted(prefix):
            keys = [entry.key async for entry in self._store.list(prefix)]
            for key in keys:
                await self._store.delete(key)
        return True


def _beside(key: str) -> str:
    return key.removesuffix(manifest.FILE)


def _allocated(parts: Parts) -> int:
    """The bytes that the files have on disk: about what there is to do."""
    return sum(path.stat().st_blocks * 512 for path in parts.files.values())
