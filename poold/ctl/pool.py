"""`pooldctl pool`: warm machines."""

from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context
from warren_console.text import megabytes

SHARE_TITLES = ("IMAGE", ">VCPUS", ">MEMORY", ">DISK", ">WARM", ">WANTED", ">FLOOR", ">CEILING")


def ls(context: Context) -> int:
    return _show(context, context.poold.get("/admin/status"))


def set_size(context: Context) -> int:
    floor, ceiling = context.asked.size
    body = {"image": context.asked.image, "floor": floor, "ceiling": ceiling}
    return _show(context, context.poold.call("PUT", "/admin/pool", body))


def refill(context: Context) -> int:
    body = {} if context.asked.image is None else {"image": context.asked.image}
    return _show(context, context.poold.call("POST", "/admin/pool/refill", body))


def _show(context: Context, answer: dict[str, Any]) -> int:
    if context.out.as_json:
        context.out.json({"pool": answer["pool"]})
    else:
        context.out.table(SHARE_TITLES, [share_cells(share) for share in answer["pool"]])
    return errors.DONE


def share_cells(share: dict[str, Any]) -> tuple[object, ...]:
    sizes = (megabytes(share["memory_mb"]), megabytes(share["disk_mb"]))
    counts = tuple(share.get(name, "-") for name in ("warm", "wanted", "floor", "ceiling"))
    return (share["image"], share["vcpus"], *sizes, *counts)
