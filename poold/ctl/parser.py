"""What can be asked for, as an argparse tree. A leaf's `run` names the module and the function that do it.

Nothing of them is imported here: help and completion are quick, and a command loads only what it needs.
Names of arguments matter to completion: `sandbox`, `sandboxes` and `image` are completed by asking poold,
and `key` from the registry.
"""

import argparse
import re
from typing import Any

from contract.__about__ import __version__
from warren_console import network

EPILOG = """\
exit codes:
  0  done                         3  poold is not reachable
  1  it failed, or poold said no  4  there is no such thing
  2  it was asked wrongly         130  interrupted
  exec and attach exit with the command's own code, and 128+n after signal n;
  exec with 125 if it was not run or its end is not known, 124 if its time was up.

environment:
  POOLD_SOCKET   poold's socket; else $POOLD_RUN_DIR/poold.sock, else /run/warren/poold.sock
  POOLD_REGISTRY the folder that hosts and gateways share, for keys
  POOLD_SECRETS  the folder of secrets that tasks may ask for
  NO_COLOR       nothing is printed bold or in colour
"""
SECONDS = "N"
MAX_PAGE = 1000  # of what poold lists in one answer
Group = Any  # argparse's type for the subcommands of a parser has no public name


def build() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pooldctl",
        description="Look at and steer the poold of this host.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pooldctl {__version__}")
    _common(parser)
    top = parser.add_subparsers(metavar="COMMAND", required=True)
    _leaf(top, "status", "status.show", "how this host is doing")
    _leaf(top, "lease", "lease.show", "whether this host holds its lease, and for how long")
    _leaf(top, "hosts", "lease.hosts", "the hosts of this cluster, as this one sees them")
    live = _leaf(top, "top", "top.top", "what the machines use, live")
    live.add_argument("--once", action="store_true", help="two samples, one table")
    live.add_argument("--interval", type=_positive, default=1.0, metavar="SECONDS", help="between samples (1)")
    _sandboxes(_group(top, "sandboxes", "the sandboxes of this host", aliases=["sb"]))
    _tasks(_group(top, "tasks", "what agents do on this host"))
    _exec(top)
    _attach(top)
    _pool(_group(top, "pool", "warm machines"))
    _image(_group(top, "image", "what machines are made from"))
    _template(_group(top, "template", "what workspaces begin with"))
    _events(_group(top, "events", "what happened and happens on this host"))
    _records(top)
    _store(_group(top, "store", "what this host shares with others"))
    _drain(top)
    _rules(_group(top, "rules", "what happens to an owner's sandboxes by itself"))
    _keys(_group(top, "keys", "API keys, in the registry; poold need not run"))
    _secrets(_group(top, "secrets", "what tasks may ask for by name; poold need not run"))
    _pki(_group(top, "pki", "the cluster's certificates and the keys for tickets; poold need not run"))
    _doctor(top)
    completion = _leaf(top, "completion", "completion.script", "a script that completes words in your shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    # For those scripts only, and therefore without a help text.
    top.add_parser("__complete", allow_abbrev=False).set_defaults(run="completion.complete", words=[])
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    """Options that may stand before and after the command: without defaults, or the latter would undo the former."""
    group = parser.add_argument_group("for every command")
    absent = argparse.SUPPRESS
    group.add_argument("--json", action="store_true", default=absent, help="for programs")
    group.add_argument("--socket", metavar="PATH", default=absent, help="poold's unix socket")
    group.add_argument(
        "--timeout", type=_positive, metavar="SECONDS", default=absent, help="patience with an answer (120)"
    )


def _group(parent: Group, name: str, help: str, **more: Any) -> Group:
    parser = parent.add_parser(name, help=help, description=help, allow_abbrev=False, **more)
    _common(parser)
    return parser.add_subparsers(metavar="COMMAND", required=True)


def _leaf(parent: Group, name: str, run: str, help: str, **more: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = parent.add_parser(name, help=help, description=help, allow_abbrev=False, **more)
    parser.set_defaults(run=run)
    _common(parser)
    return parser


def _one(parent: Group, name: str, run: str, help: str) -> argparse.ArgumentParser:
    parser = _leaf(parent, name, run, help)
    parser.add_argument("sandbox", metavar="ID", help="a sandbox's id, or its first characters (sb- and 4 at least)")
    return parser


def _sandboxes(group: Group) -> None:
    listing = _leaf(group, "ls", "sandboxes.ls", "list them, newest first")
    listing.add_argument("--state", metavar="STATE[,STATE]", help="only in these states")
    listing.add_argument("-a", "--all", action="store_true", help="stopped ones too")
    listing.add_argument("-q", "--quiet", action="store_true", help="only their ids")
    _one(group, "show", "sandboxes.show", "all about one")
    _create(_leaf(group, "create", "sandboxes.create", "make one, and print its id"))
    for name, help in (
        ("rm", "destroy them"),
        ("pause", "put them to sleep on disk"),
        ("hibernate", "put them to sleep in the object store"),
        ("resume", "wake them"),
    ):
        many = _leaf(group, name, f"sandboxes.{name}", help)
        many.add_argument("sandboxes", metavar="ID", nargs="+")
        if name == "hibernate":
            many.add_argument("--files", action="store_true", help="their files alone: what runs in them ends")
    timeout = _one(group, "timeout", "sandboxes.timeout", "give it so long from now on")
    timeout.add_argument("seconds", metavar="SECONDS", type=_count)
    logs = _one(group, "logs", "sandboxes.logs", "what its guest logged")
    logs.add_argument("-n", "--lines", type=_count, default=200, metavar="N", help="the last N lines (200)")
    events = _one(group, "events", "events.of_sandbox", "what happened to it")
    events.add_argument("-n", "--lines", type=_page, metavar="N", help="only the last N")
    events.add_argument("-f", "--follow", action="store_true", help="go on until it has ended")
    _exec(group)
    _attach(group)


def _tasks(group: Group) -> None:
    listing = _leaf(group, "ls", "tasks.ls", "list them, newest first")
    listing.add_argument("--state", metavar="STATE[,STATE]", help="only in these states")
    listing.add_argument("-q", "--quiet", action="store_true", help="only their ids")
    show = _leaf(group, "show", "tasks.show", "all about one")
    show.add_argument("task", metavar="ID", help="a task's id")
    stop = _leaf(group, "stop", "tasks.stop", "end them; what they have done is kept")
    stop.add_argument("tasks", metavar="ID", nargs="+")


def _create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", metavar="NAME", help="the host's default")
    parser.add_argument("--vcpus", type=_count, metavar="N")
    parser.add_argument("--memory-mb", type=_count, metavar="MB")
    parser.add_argument("--disk-mb", type=_count, metavar="MB")
    _rule_options(parser)
    parser.add_argument("--env", action="append", default=[], type=_pair, metavar="K=V", help="for every command in it")
    parser.add_argument(
        "--metadata", action="append", default=[], type=_pair, metavar="K=V", help="shown with the sandbox"
    )
    network.add_options(parser, whose="what it may reach (as the image or the host says: deny)")


def _rule_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout-sec", type=_count, metavar=SECONDS, help="how long it may live")
    parser.add_argument("--on-timeout", choices=("pause", "destroy"), help="what happens then")
    parser.add_argument("--idle-sec", type=_count, metavar=SECONDS, help="pause it after so long without use")
    parser.add_argument("--hibernate-sec", type=_count, metavar=SECONDS, help="to the store after so long in pause")
    parser.add_argument("--hibernate-kind", choices=("machine", "files"), help="what goes there then")
    parser.add_argument("--paused-sec", type=_count, metavar=SECONDS, help="destroy it after so long in pause")
    parser.add_argument(
        "--auto-resume", action=argparse.BooleanOptionalAction, default=None, help="resume it on the next request"
    )


def _exec(parent: Group) -> None:
    parser = _one(parent, "exec", "execute.execute", "run a command in a sandbox: exec ID [options] -- CMD…")
    parser.add_argument("words", metavar="CMD", nargs="*", help="a program and its arguments; put -- before them")
    parser.add_argument("-u", "--user", help="who runs it (user)")
    parser.add_argument("--cwd", metavar="DIR", help="where it runs (/workspace)")
    parser.add_argument("--env", action="append", default=[], type=_pair, metavar="K=V")
    parser.add_argument("-i", "--stdin", action="store_true", help="give it our standard input, at most 1 MiB of text")
    parser.add_argument("--timeout-sec", type=_count, metavar=SECONDS, help="then it is killed")


def _attach(parent: Group) -> None:
    parser = _one(parent, "attach", "attach.attach", "a terminal in a sandbox: a new shell, or the one you left")
    parser.add_argument("-u", "--user", help="who the shell runs as (user)")
    parser.add_argument("--cmd", metavar="LINE", help="run this command line in place of a shell")
    parser.add_argument("--new", action="store_true", help="a new shell, even if you left one")
    parser.add_argument("--pid", type=_count, metavar="N", help="the shell with this number")
    parser.add_argument("--detach-key", metavar="KEY", default="ctrl-]", help="leaves the shell running (%(default)s)")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not tell the detach key")


def _pool(group: Group) -> None:
    _leaf(group, "ls", "pool.ls", "how many are warm, and how many shall be")
    sizes = _leaf(group, "set", "pool.set_size", "keep so many warm, until poold is started again")
    sizes.add_argument("image", metavar="IMAGE")
    sizes.add_argument("size", metavar="FLOOR-CEILING", type=_pool_size, help="as 2-8")
    refill = _leaf(group, "refill", "pool.refill", "drop the warm ones and restore others")
    refill.add_argument("image", metavar="IMAGE", nargs="?")


def _template(group: Group) -> None:
    add = _leaf(group, "add", "template.add", "put a folder or an archive into the store as a template")
    add.add_argument("template", metavar="NAME")
    add.add_argument("path", metavar="FOLDER|ARCHIVE", help="a folder, or a tar archive: plain, gzip, bzip2, xz, zstd")
    _leaf(group, "ls", "template.ls", "list them")
    _leaf(group, "rm", "template.rm", "remove one").add_argument("template", metavar="NAME")


def _image(group: Group) -> None:
    build = _leaf(group, "build", "image.build", "build images that are not there yet")
    build.add_argument("names", metavar="NAME", nargs="+")
    build.add_argument("--refresh", action="store_true", help="resolve packages anew, for security updates")
    listing = _leaf(group, "ls", "image.ls", "list images and their current builds")
    for parser in (build, listing):
        parser.add_argument("--out", metavar="DIR", help="where builds stand (POOLD_IMAGES, WARREN_IMAGES)")
    _leaf(group, "rm", "image.rm", "remove one that no machine uses").add_argument("image", metavar="NAME")


def _events(group: Group) -> None:
    tail = _leaf(group, "tail", "events.tail", "the last events")
    tail.add_argument("-n", "--lines", type=_page, default=20, metavar="N", help="how many (20)")
    follow = _leaf(group, "follow", "events.follow", "events from now on, until you interrupt it")
    for parser in (tail, follow):
        parser.add_argument("--sandbox", metavar="ID", help="only of this sandbox")


def _records(top: Group) -> None:
    audit = _group(top, "audit", "who did what")
    rows = _leaf(audit, "ls", "records.audit_ls", "the last rows of the audit log")
    rows.add_argument("-n", "--lines", type=_page, default=50, metavar="N", help="how many (50)")
    rows.add_argument("--sandbox", metavar="ID")
    rows.add_argument("--owner", metavar="NAME")
    rows.add_argument("--action", metavar="NAME")
    _leaf(audit, "verify", "records.audit_verify", "look whether the log was tampered with")
    ledger = _group(top, "ledger", "the host's database")
    backup = _leaf(ledger, "backup", "records.ledger_backup", "copy it while poold runs")
    backup.add_argument("path", metavar="PATH", help="a file that does not exist yet")
    _leaf(ledger, "check", "records.ledger_check", "look for damage")
    _leaf(ledger, "status", "ledger.status", "when writes are acknowledged, where its replica is, how far behind")
    accept = _leaf(ledger, "accept", "ledger.accept", "let an older epoch's ledger do, where the newest is damaged")
    accept.add_argument("host", metavar="HOST", help="whose ledger it is")
    accept.add_argument(
        "--epoch", type=int, required=True, metavar="NUMBER", help="which one will do; 0: none is needed"
    )
    accept.add_argument("--state-dir", metavar="FOLDER", help="of the host that carries it on (that of the poold here)")
    restore = _leaf(ledger, "restore", "ledger.restore", "make a ledger from a replica; poold need not run")
    restore.add_argument(
        "--from", dest="where", metavar="WHERE", help="FOLDER or s3://BUCKET/PREFIX/ledger/HOST/EPOCH (this host's)"
    )
    restore.add_argument("--to", metavar="FILE", help="one that does not exist yet")
    restore.add_argument(
        "--verify", action="store_true", help="look whether there could be one; keeps it only with --to"
    )


def _drain(top: Group) -> None:
    drain = _leaf(top, "drain", "drain.drain", "move everything to another host; this one takes nothing more")
    how = drain.add_mutually_exclusive_group()
    how.add_argument("--in-place", action="store_true", help="move nothing: pause what runs, on this host's disk")
    how.add_argument("--destroy", action="store_true", help="move nothing: destroy what runs")
    drain.add_argument("--timeout-sec", type=_count, default=600, metavar=SECONDS, help="then it is undone (600)")
    drain.add_argument("--force", action="store_true", help="give up what cannot be moved, and move the rest")
    _leaf(top, "undrain", "drain.undrain", "take sandboxes again")


def _rules(group: Group) -> None:
    show = _leaf(group, "show", "rules.show", "an owner's rules")
    show.add_argument("owner", metavar="OWNER", nargs="?", default="local", help="(local)")
    change = _leaf(group, "set", "rules.change", "change an owner's rules, for sandboxes made from now on")
    change.add_argument("owner", metavar="OWNER")
    _rule_options(change)
    change.add_argument("--unset", action="append", default=[], choices=RULES, help="leave it to the host again")


RULES = ("timeout_sec", "on_timeout", "idle_sec", "hibernate_sec", "hibernate_kind", "paused_sec", "auto_resume")


def _store(group: Group) -> None:
    sweep = _leaf(group, "sweep", "store.sweep", "remove what is provably nobody's any more")
    sweep.add_argument("--dry-run", action="store_true", help="only tell of it")
    sweep.add_argument("--older", type=_days, default=7, metavar="DAYS", help="only what is older than this (7)")


def _days(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 3650:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days, from 0 to 3650")
    return int(text)


def _keys(group: Group) -> None:
    create = _leaf(group, "create", "keys.create", "make one, and print its secret, this once")
    create.add_argument("--owner", required=True, metavar="NAME", help="who it belongs to")
    create.add_argument("--name", metavar="TEXT", help="for people")
    create.add_argument("--plan", metavar="NAME", help="(default)")
    create.add_argument("--scope", action="append", choices=SCOPES, help="what it is for (sandboxes and tasks)")
    create.add_argument("--vcpus", type=_count, metavar="N", help="of all the owner's sandboxes together (32)")
    create.add_argument("--memory-mb", type=_count, metavar="MB", help="the same (65536)")
    create.add_argument("--disk-mb", type=_count, metavar="MB", help="the same (1048576)")
    create.add_argument("--rate", type=_count, metavar="N", help="requests a second (50)")
    create.add_argument("--expires", type=_count, metavar="DAYS", help="when it ends (never)")
    network.add_options(create, whose="what the key's sandboxes may reach, and at most")
    listing = _leaf(group, "list", "keys.ls", "list them, oldest first", aliases=["ls"])
    revoke = _leaf(group, "revoke", "keys.revoke", "refuse it from now on, for ever")
    rotate = _leaf(group, "rotate", "keys.rotate", "a new secret with the same rights")
    rotate.add_argument("--grace", type=_seconds, default=3600, metavar="SECONDS", help="then the old one ends (3600)")
    for parser in (revoke, rotate):
        parser.add_argument("key", metavar="ID", help="a key's id, or its first characters (4 at least)")
    for parser in (create, listing, revoke, rotate):
        parser.add_argument("--registry", metavar="PLACE", help="a folder or s3://… (POOLD_REGISTRY)")


def _secrets(group: Group) -> None:
    put = _leaf(group, "set", "secrets.put", "set one; its value is read from standard input")
    remove = _leaf(group, "rm", "secrets.rm", "remove one")
    listing = _leaf(group, "ls", "secrets.ls", "list their names, and what is wrong with one")
    for parser in (put, remove):
        parser.add_argument("name", metavar="NAME", help="as the agent's variable: A-Z, 0-9 and _")
        parser.add_argument(
            "--owner", required=True, metavar="OWNER", help="whose tasks may ask for it; all: everybody's"
        )
    listing.add_argument("--owner", metavar="OWNER", help="only of this owner")
    for parser in (put, remove, listing):
        parser.add_argument("--dir", metavar="DIR", help="the folder of secrets (POOLD_SECRETS)")


def _pki(group: Group) -> None:
    init = _leaf(group, "init", "pki.init", "a new authority: certificates, and keys for tickets")
    issue = _leaf(group, "issue", "pki.issue", "a folder for a host (POOLD_PKI) or a gateway (GATEWAY_PKI)")
    rotate = _leaf(group, "rotate-tickets", "pki.rotate_tickets", "a new key for tickets; the old one stays good")
    for parser in (init, issue, rotate):
        parser.add_argument("folder", metavar="FOLDER", help="the authority's")
    rotate.add_argument("--forget-old", action="store_true", help="end it: the old one is no longer good")
    issue.add_argument("kind", choices=KINDS)
    issue.add_argument("name", metavar="NAME", help="of the host, as in POOLD_NAME, or of the gateway")
    issue.add_argument("--address", nargs="+", action="extend", default=[], metavar="IP-OR-DNS", help="where it serves")
    issue.add_argument("--out", required=True, metavar="DIR", help="a folder that is not there yet, or is empty")
    renew = _leaf(group, "renew", "pki.renew", "a new key and certificate for the same names")
    renew.add_argument("--ca", required=True, metavar="FOLDER", help="the authority's")
    for parser in (
        renew,
        _leaf(group, "show", "pki.show", "whose it is and until when; exits with 1 if it is useless"),
    ):
        parser.add_argument("folder", metavar="DIR")


SCOPES = ("sandboxes", "tasks", "admin")
KINDS = ("host", "gateway")


def _doctor(top: Group) -> None:
    doctor = _leaf(top, "doctor", "doctor.doctor", "look at this host, and say what to mend; poold need not run")
    doctor.add_argument("--state-dir", metavar="DIR", help="poold's (POOLD_STATE_DIR, /var/lib/warren)")
    doctor.add_argument("--images", metavar="DIR", help="poold's (POOLD_IMAGES, STATE_DIR/images)")


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def _seconds(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _page(text: str) -> int:
    if (count := _count(text)) > MAX_PAGE:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_PAGE}, got {text!r}")
    return count


def _positive(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return float(text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value


def _pool_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be FLOOR-CEILING like 2-8, got {text!r}")
    floor = int(match[1])
    ceiling = int(match[2] or max(floor, 1))
    if ceiling < floor:
        raise argparse.ArgumentTypeError(f"the ceiling is below the floor in {text!r}")
    return floor, ceiling
