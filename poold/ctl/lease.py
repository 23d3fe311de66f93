"""`pooldctl lease` and `pooldctl hosts`: this host's place in its cluster, and the others'."""

from typing import Any

from poold.ctl import errors
from poold.ctl.context import Context

TITLES = ("HOST", "STATE", ">EPOCH", "ALIVE", ">FREE", "ADDRESS")
ALONE = "this host is alone: POOLD_STORE is not set"


def show(context: Context) -> int:
    lease = context.poold.get("/admin/lease")["lease"]
    if context.out.as_json:
        context.out.json(lease)
    elif lease is None:
        context.out.line(ALONE)
    else:
        context.out.facts(_facts(lease))
    return errors.DONE


def hosts(context: Context) -> int:
    told = context.poold.get("/admin/lease")["hosts"]
    if context.out.as_json:
        context.out.json({"hosts": told})
    elif not told:
        context.out.line(ALONE)
    else:
        context.out.table(TITLES, [_cells(host) for host in told])
    return errors.DONE


def _facts(lease: dict[str, Any]) -> dict[str, str]:
    return {
        "host": lease["host"],
        "state": f"{lease['state']}, goes on for {lease['left_s']:.1f} s without the store",
        "epoch": f"{lease['epoch']} (its ledger began in {lease['root']})",
        "renewals": f"{lease['renewals']}, {lease['failures']} failed",
        "taken": ", ".join(_taken(each) for each in lease["taken"]) or "nothing",
    }


def _taken(each: dict[str, Any]) -> str:
    return f"epochs {each['root']} to {each['last']} by {each['by']}"


def _cells(host: dict[str, Any]) -> tuple[object, ...]:
    if host["state"] == "unreadable":
        return (host["host"], "unreadable", "-", "?", "-", host["why"])
    slots, alive = host["record"]["slots"], "yes" if host["alive"] else "no"
    if "trouble" in host:
        return (host["host"], "not carried on", host["epoch"], alive, "-", host["trouble"])
    return (
        host["host"],
        host["state"],
        host["epoch"],
        alive,
        f"{slots['free']}/{slots['all']}",
        host["record"]["address"],
    )
