"""`pooldctl store sweep`: what nobody needs any more in the store that hosts share."""

from poold.ctl import errors
from poold.ctl.context import Context
from warren_console.output import moment
from warren_console.text import size

TITLES = ("KIND", "PREFIX", ">OBJECTS", ">BYTES", "NEWEST")


def sweep(context: Context) -> int:
    """Fails if something was found and is still there. What could not be judged is told, and is no failure."""
    asked, out = context.asked, context.out
    body = {"older_days": asked.older, "dry_run": asked.dry_run}
    told = context.poold.call("POST", "/admin/store/sweep", body)
    code = errors.FAILED if told["spared"] else errors.DONE
    if out.as_json:
        out.json(told)
        return code
    rows = [
        (row["kind"], row["prefix"], row["objects"], size(row["bytes"]), moment(row["newest_ms"]))
        for row in told["swept"]
    ]
    if rows:
        out.table(TITLES, rows)
    word = "would be removed" if asked.dry_run else "removed"
    out.line(f"{len(rows)} {word}, {size(told['bytes'])}")
    for prefix in told["spared"]:
        out.line(f"kept, for somebody needs it or it could not be removed (see poold's log): {prefix}")
    for problem in told["unsure"]:
        out.line(f"cannot be read, so what it may need was kept: {problem}")
    return code
