"""`manifest.json`: what a build is and what it was made of. poold reads it; nothing else about a build is promised.

    format      1; a reader refuses numbers it does not know
    name        the image's name
    key         64 hex digits over every input; the first 12 are in the folder's name
    arch        "x86_64"
    kernel      file name, in the manifest's folder, of the uncompressed ELF kernel
    initramfs   file name of the initramfs
    rootfs      file name of the root file system: ext4, read-only, labelled `warren-root`
    defaults    {"vcpus", "memory_mb", "disk_mb"}: the size of a machine for which none was asked
    network     what its machines reach if nobody asks, and at most: a policy, if it has one
    files       {file name: {"sha256", "bytes"}} of the three files
    inputs      what the key is made of:
        recipes     {path below images/: sha256} of image.toml, with that of each base
        builder     {path below images/: sha256} of the program that made it
        guest       {"version", "files": {path below guest/: sha256}}
        sources     {"suite", "override": sha256 of the sources file or null}
        kernel      [{"name", "version", "sha256"}] the packages of kernel and initramfs; the kernel's is first
        packages    [{"name", "version", "sha256"}] every package installed in the root file system
        supplied    [{"variable", "sha256", …}] archives that the operator supplied, if any; packages of npm are
                    pinned in the recipes
    built       {"at": UTC time, "on": the host's name, "seconds"}; facts about the making, not in the key

A build is never changed, and is removed once its image has a newer one. Whoever needs it longer holds a shared `flock`
on its `manifest.json`, or hard links to its files.
"""

import json
from pathlib import Path
from typing import Any

from images.keys import sha256_of
from images.recipe import Recipe

FILE_NAME = "manifest.json"
FORMAT = 1


def describe(
    folder: Path,
    recipe: Recipe,
    *,
    key: str,
    inputs: dict[str, object],
    built: dict[str, object],
    kernel: str,
    initramfs: str,
    rootfs: str,
) -> dict[str, object]:
    """Return the manifest of a build whose three files are in `folder`."""
    return {
        "format": FORMAT,
        "name": recipe.name,
        "key": key,
        "arch": "x86_64",
        "kernel": kernel,
        "initramfs": initramfs,
        "rootfs": rootfs,
        "defaults": {
            "vcpus": recipe.defaults.vcpus,
            "memory_mb": recipe.defaults.memory_mb,
            "disk_mb": recipe.defaults.disk_mb,
        },
        **({} if recipe.network is None else {"network": recipe.network}),
        "files": {
            name: {"sha256": sha256_of(folder / name), "bytes": (folder / name).stat().st_size}
            for name in (kernel, initramfs, rootfs)
        },
        "inputs": inputs,
        "built": built,
    }


def write(folder: Path, manifest: dict[str, object]) -> None:
    (folder / FILE_NAME).write_text(json.dumps(manifest, indent=2) + "\n")


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of the build in `folder`."""
    manifest: dict[str, Any] = json.loads((folder / FILE_NAME).read_text())
    return manifest
