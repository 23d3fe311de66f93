"""`warren workspaces` and `warren templates`: what sandboxes have saved. Names and paths in it are a guest's."""

from dataclasses import asdict
from itertools import islice
from pathlib import Path

from warren.cli import errors
from warren.cli.archives import carried, extracted
from warren.cli.context import Context
from warren.cli.diffs import show_diff
from warren.cli.errors import Failure
from warren.cli.execute import STDOUT
from warren.cli.ids import find, find_workspace
from warren.cli.program import say
from warren.cli.progress import busy
from warren.cli.several import each_named
from warren.workspace_models import Change, Version, WorkspaceDiff, WorkspaceInfo
from warren_console.output import write_all
from warren_console.text import plural, relative, size

TITLES = ("NAME", ">VERSION", ">FILES", ">SIZE", "SAVED", "NOTE")
VERSIONS = (">VERSION", ">FROM", ">FILES", ">SIZE", "SAVED", "BY")
CHANGES = ("CHANGE", ">BEFORE", ">AFTER", "PATH")
TEMPLATES = ("NAME", ">FILES", ">SIZE", "UPDATED", "OF")
STYLES = {"added": "green", "removed": "red"}
MOUNT = "/workspace/"  # paths may be typed as they are in a sandbox


def ls(context: Context) -> int:
    out = context.out
    with busy("asking the hosts"):
        infos = [workspace.info for workspace in context.warren.workspaces.list()]
    if out.as_json:
        out.json({"workspaces": [asdict(info) for info in infos]})
    elif context.asked.quiet:
        for info in infos:
            out.line(info.name)
    else:
        out.table(TITLES, [_summary(info, out.now_ms) for info in infos])
    return errors.DONE


def _summary(info: WorkspaceInfo, now_ms: int) -> tuple[object, ...]:
    if info.problem is not None:
        return info.name, info.version, "-", "-", "-", info.problem
    return info.name, info.version, info.files, size(info.size_bytes), relative(info.updated_ms, now_ms), ""


def versions(context: Context) -> int:
    asked, out = context.asked, context.out
    with busy("asking the hosts"):
        listing = find_workspace(context.warren, asked.workspace).versions()
        found = list(islice(listing, asked.limit))
        is_cut = len(found) == asked.limit and next(listing, None) is not None
    if out.as_json:
        out.json({"versions": [asdict(version) for version in found], "is_truncated": is_cut})
    else:
        out.table(VERSIONS, [_cells(version, out.now_ms) for version in found])
    if is_cut:
        say(f"that is not all of it: -n shows more than {asked.limit}")
    return errors.DONE


def _cells(version: Version, now_ms: int) -> tuple[object, ...]:
    if version.problem is not None:
        return version.version, "-", "-", "-", "-", version.problem
    by = version.task or version.sandbox or "-"
    if version.restored_from is not None:
        by = f"restored from version {version.restored_from}"
    return (
        version.version,
        version.parent or (version.template or "-"),
        version.files,
        size(version.size_bytes),
        relative(version.created_ms, now_ms),
        by,
    )


def diff(context: Context) -> int:
    asked, out = context.asked, context.out
    path = None if asked.path is None else asked.path.removeprefix(MOUNT)
    with busy("comparing"):
        workspace = find_workspace(context.warren, asked.workspace)
        found = workspace.diff(asked.from_version, asked.to_version, path=path)
    if out.as_json:
        out.json(asdict(found))
    elif found.text is not None:
        _show_text(context, found.text)
    else:
        _show_changes(context, found)
    if found.is_truncated:
        say("that is not all of it: there are more changes")
    if path is not None and found.text is None and not out.as_json and found.changes:
        say(f"what changed in {path} cannot be shown: it is no text, or too large")
    return errors.DONE


def _show_text(context: Context, text: str) -> None:
    if context.out.is_terminal:
        show_diff(context.out, text)
    else:
        write_all(STDOUT, text.encode("utf-8", "replace"))


def _show_changes(context: Context, found: WorkspaceDiff) -> None:
    out = context.out
    begin = "nothing" if found.from_version is None else f"version {found.from_version}"
    say(f"{begin} → version {found.to_version}: {plural(len(found.changes), 'change')}")
    title, *lines = out.table_lines(CHANGES, [_change(each) for each in found.changes])
    if lines:
        out.raw(title + "\n")
    for change, line in zip(found.changes, lines, strict=True):
        out.raw(out.painted(line, STYLES.get(change.change, "")) + "\n")


def _change(change: Change) -> tuple[object, ...]:
    return change.change, size(change.size_before), size(change.size_after), change.path


def restore(context: Context) -> int:
    asked, out = context.asked, context.out
    with busy(f"restoring version {asked.version}"):
        version = find_workspace(context.warren, asked.workspace).restore(asked.version)
    if out.as_json:
        out.json(asdict(version))
    else:
        out.line(f"{asked.workspace} version {version.version} has the files of version {asked.version}")
    return errors.DONE


def get(context: Context) -> int:
    asked = context.asked
    workspace = find_workspace(context.warren, asked.workspace)
    version = asked.version or workspace.version
    if asked.extract is not None:
        return extracted(context, Path(asked.extract), lambda to, bar: workspace.download(to, version, progress=bar))
    target = asked.output or f"{workspace.name}-{version}.tar.zst"
    return carried(context, target, lambda to, bar: workspace.download(to, version, progress=bar))


def save(context: Context) -> int:
    out = context.out
    sandbox = find(context.warren, context.asked.sandbox)
    if not sandbox.info.is_saved:
        hint = "it was created without --workspace; `warren cp` carries files out of it"
        raise Failure(f"{sandbox.id} has no workspace to save to", hint=hint)
    with busy("saving"):
        saved = sandbox.save_workspace()
    if out.as_json:
        out.json(asdict(saved))
    elif saved.version is None:
        out.line(f"{saved.workspace.name} has no files yet")
    else:
        since = "" if saved.is_new else ", and nothing has changed since"
        out.line(f"{saved.workspace.name} version {saved.version}{since}")
    return errors.DONE


def rm(context: Context) -> int:
    removed, code = each_named(
        context,
        context.asked.workspaces,
        "removing",
        lambda name: (name, find_workspace(context.warren, name).delete()),
        lambda told: f"{told[0]} removed, with {plural(told[1], 'version')}",
    )
    if context.out.as_json:
        context.out.json({"workspaces": [{"name": name, "versions": count} for name, count in removed]})
    return code


def templates(context: Context) -> int:
    out = context.out
    with busy("asking the hosts"):
        found = context.warren.templates()
    if out.as_json:
        out.json({"templates": [asdict(template) for template in found]})
    else:
        out.table(
            TEMPLATES,
            [
                (
                    each.name,
                    each.files,
                    size(each.size_bytes),
                    relative(each.updated_ms, out.now_ms),
                    "Warren" if each.is_shipped else "your operator",
                )
                for each in found
            ],
        )
    return errors.DONE
