"""`warren recover`: the disk of a hibernated sandbox, or its files, here."""

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.ids import find
from warren.cli.progress import Bar


def recover(context: Context) -> int:
    """Of one that is not whole, what can be read is here, and the exit code says that it is not all."""
    sandbox = find(context.warren, context.asked.sandbox)
    is_archive = (sandbox.info.hibernated or {}).get("kind") == "files"
    target = context.asked.output or f"{sandbox.id}.{'tar' if is_archive else 'ext4'}.zst"
    with Bar(target) as bar:
        damaged = sandbox.recover(target, progress=bar)
    if context.out.as_json:
        context.out.json({"file": target, "damaged": list(damaged)})
    else:
        how = "tar --ignore-zeros -x" if is_archive else "debugfs or mount -o loop,ro"
        context.out.line(f"{target}  unpack it with zstd -d, and look into it with {how}")
    if damaged:
        raise errors.Failure(f"{target} has zeros where these parts are damaged in the store: {', '.join(damaged)}")
    return errors.DONE
