"""What can be asked for of workspaces and templates, as a part of the tree of `parser`."""

import argparse

from warren.cli.parts import Group, count, group, leaf


def add_options(create: argparse.ArgumentParser) -> None:
    create.add_argument(
        "--workspace",
        metavar="NAME",
        help="what was saved under this name is in /workspace, and is saved under it at the end (not saved)",
    )
    create.add_argument("--template", metavar="NAME", help="what /workspace begins with, if nothing was saved yet")


def add_discard(rm: argparse.ArgumentParser) -> None:
    help = "end those too whose workspace cannot be saved: what was not is lost"
    rm.add_argument("--discard", action="store_true", help=help)


def add_workspaces(top: Group) -> None:
    workspaces = group(top, "workspaces", "what your sandboxes have saved, version by version")
    ls = leaf(workspaces, "ls", "workspaces.ls", "list them, by name")
    ls.add_argument("-q", "--quiet", action="store_true", help="only their names")
    versions = _one(workspaces, "versions", "workspaces.versions", "the versions of one, newest first")
    versions.add_argument("-n", "--limit", type=count, default=50, metavar="N", help="at most so many (%(default)s)")
    _diff(_one(workspaces, "diff", "workspaces.diff", "what is different between two versions"))
    restore = _one(workspaces, "restore", "workspaces.restore", "let an earlier version be the newest; nothing is lost")
    restore.add_argument("version", metavar="VERSION", type=count, help="whose files they are")
    _get(_one(workspaces, "get", "workspaces.get", "all files of a version, a tar in zstd"))
    save = leaf(workspaces, "save", "workspaces.save", "save the workspace of a sandbox now")
    save.add_argument("sandbox", metavar="ID", help="a sandbox")
    rm = leaf(workspaces, "rm", "workspaces.rm", "delete them with all their versions")
    rm.add_argument("workspaces", metavar="NAME", nargs="+")
    leaf(top, "templates", "workspaces.templates", "what a workspace may begin with")


def _one(parent: Group, name: str, run: str, help: str) -> argparse.ArgumentParser:
    parser = leaf(parent, name, run, help)
    parser.add_argument("workspace", metavar="NAME", help="a workspace")
    return parser


def _diff(diff: argparse.ArgumentParser) -> None:
    help = "the earlier version (what the later one was made from)"
    diff.add_argument("from_version", metavar="FROM", nargs="?", type=count, help=help)
    diff.add_argument("to_version", metavar="TO", nargs="?", type=count, help="the later version (the newest)")
    diff.add_argument("--path", metavar="FILE", help="only this file of /workspace, and what changed in it")


def _get(get: argparse.ArgumentParser) -> None:
    get.add_argument("version", metavar="VERSION", nargs="?", type=count, help="which one (the newest)")
    where = get.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", metavar="FILE", help="where to (NAME-VERSION.tar.zst); - is standard output")
    where.add_argument("--extract", metavar="DIR", help="unpack it into this folder")
