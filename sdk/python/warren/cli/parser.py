"""What can be asked for, as an argparse tree. A leaf's `run` names the module and the function that do it.

Nothing of them is imported here: help and completion are quick, and a command loads only what it needs.
Names of arguments matter to completion: `sandbox`, `sandboxes`, `source`, `target`, `image`, `state`, `task`, `tasks`,
`question`, `artifact`, `task_state`, `workspace`, `workspaces`, `template` and the versions are asked for.
"""

import argparse

from warren.__about__ import __version__
from warren.calls import GRACE_S
from warren.cli import task_parser, workspace_parser
from warren.cli.parts import Group, common, count, group, leaf, number, pairs, port, seconds, seconds_or_0
from warren_console import network

EPILOG = """\
exit codes:
  0  done                           3  the gateway is not reachable
  1  it failed, or was refused      4  there is no such thing
  2  it was asked wrongly           130  interrupted
  exec and attach exit with the command's own code, and 128+n after signal n;
  exec with 125 if it was not run or its end is not known, 124 if its time was up.
  run and tasks follow exit with 0 if the task completed, 1 if it failed, 5 if it was stopped.

environment:
  WARREN_URL, WARREN_API_KEY   the gateway and the key; else what `warren login` keeps
  WARREN_CA                    a file of certificates that vouch for the gateway
  NO_COLOR                     nothing is printed bold or in colour

ID is a sandbox's id, the first characters of it (3 at least), or the name that it was created with.
"""
SECONDS = "N"
PATIENCE_S = 120.0  # a machine of a new shape is booted first, which takes a while without KVM
STATES = ("pending", "starting", "running", "paused", "hibernated", "stopped", "error")
# What the hosts do if nobody says anything; shown only.
TIMEOUT_S = 3600
SIZES = {"python": (1, 512, 4096), "minimal": (1, 256, 2048)}  # of the images that come with Warren
DEFAULTS = (
    f"Without --timeout it is destroyed after {TIMEOUT_S} s; `warren timeout ID TIME` gives it longer. "
    "Without a size it has what its image says: "
    + "; ".join(f"{name} {cpus} vcpu, {memory} MB, {disk} MB disk" for name, (cpus, memory, disk) in SIZES.items())
    + ". Your operator may have other rules for you: `warren get ID` tells those of a sandbox."
)


def build() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warren",
        description="Sandboxes for code and agents, in microVMs on machines that you own.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"warren {__version__}")
    common(parser)
    top = parser.add_subparsers(metavar="COMMAND", required=True)
    _login(top)
    task_parser.add_run(top)
    task_parser.add_tasks(top)
    _create(leaf(top, "create", "sandboxes.create", "make a sandbox, and print its id"))
    _ls(leaf(top, "ls", "sandboxes.ls", "list your sandboxes, newest first"))
    _one(top, "get", "sandboxes.get", "all about one")
    _exec(_one(top, "exec", "execute.execute", "run a command in a sandbox: exec ID [options] [--] CMD…"))
    _copy(leaf(top, "cp", "copy.copy", "copy a file or a folder into a sandbox or out of it"))
    _attach(_one(top, "attach", "attach.attach", "a terminal in a sandbox: a new shell, or the one you left"))
    _events(top)
    _network(top)
    _lives(top)
    workspace_parser.add_workspaces(top)
    _preview(_one(top, "preview", "preview.preview", "an address that shows a port of a sandbox"))
    task_parser.add_browse(top)
    leaf(top, "hosts", "admin.hosts", "the hosts and how they are (admin)")
    usage = leaf(top, "usage", "admin.usage", "what was used")
    usage.add_argument("--owner", metavar="NAME", help="somebody else's (admin)")
    _keys(group(top, "keys", "API keys (admin)"))
    completion = leaf(top, "completion", "completion.script", "a script that completes words in your shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    # For those scripts only, and therefore without a help text.
    top.add_parser("__complete", allow_abbrev=False).set_defaults(run="completion.complete", words=[])
    return parser


def _one(parent: Group, name: str, run: str, help: str) -> argparse.ArgumentParser:
    parser = leaf(parent, name, run, help)
    parser.add_argument("sandbox", metavar="ID", help="a sandbox")
    return parser


def _login(top: Group) -> None:
    login = leaf(top, "login", "login.login", "keep a gateway's address and a key; the key is asked for, or read")
    login.add_argument("address", metavar="URL", nargs="?", help="the gateway")
    login.add_argument("--ca", metavar="FILE", help="certificates that vouch for it")
    leaf(top, "logout", "login.logout", "forget them")


def _create(parser: argparse.ArgumentParser) -> None:
    parser.epilog = DEFAULTS
    parser.add_argument("--image", metavar="NAME", help="python, minimal, …; the host's default")
    parser.add_argument("--name", metavar="NAME", help="a name, which stands for its id")
    parser.add_argument("--vcpus", type=count, metavar="N", help="processors (as the image says)")
    parser.add_argument("--memory-mb", type=count, metavar="MB", help="memory (the same)")
    parser.add_argument("--disk-mb", type=count, metavar="MB", help="room for what is written (the same)")
    parser.add_argument(
        "--timeout",
        dest="timeout_sec",
        type=seconds,
        metavar="TIME",
        help=f"how long it lives: 90, 30m, 2h ({TIMEOUT_S})",
    )
    parser.add_argument("--on-timeout", choices=("pause", "destroy"), help="what happens then (destroy)")
    parser.add_argument(
        "--idle", dest="idle_sec", type=seconds, metavar="TIME", help="pause it after so long without use"
    )
    parser.add_argument(
        "--hibernate", dest="hibernate_sec", type=seconds, metavar="TIME", help="to the store after so long in pause"
    )
    parser.add_argument("--hibernate-kind", choices=("machine", "files"), help="what goes there then (machine)")
    parser.add_argument(
        "--paused", dest="paused_sec", type=seconds, metavar="TIME", help="destroy it after so long in pause"
    )
    parser.add_argument(
        "--auto-resume", action=argparse.BooleanOptionalAction, default=None, help="resume it on the next request"
    )
    pairs(parser, "--env", "for every command in it")
    pairs(parser, "--metadata", "shown with the sandbox")
    parser.add_argument("--public-port", action="append", default=[], type=port, metavar="PORT", help="for everybody")
    network.add_options(parser, whose="what it may reach (as your key, the image or the host says: deny)")
    workspace_parser.add_options(parser)


def _ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="stopped ones too")
    parser.add_argument("--state", metavar="STATE[,STATE]", help="only in these states")
    parser.add_argument("--image", metavar="NAME", help="only of this image")
    parser.add_argument("--owner", metavar="NAME", help="somebody else's, or * for everybody's (admin)")
    pairs(parser, "--metadata", "only those with it")
    parser.add_argument("-q", "--quiet", action="store_true", help="only their ids")
    parser.add_argument("-w", "--watch", action="store_true", help="again and again, until you interrupt it")


def _exec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", metavar="CMD", nargs="*", help="a command line, or a program and its arguments")
    parser.add_argument("-i", "--stdin", action="store_true", help="give it our standard input")
    parser.add_argument("-u", "--user", help="who runs it (user)")
    parser.add_argument("--cwd", metavar="DIR", help="where it runs (/workspace)")
    pairs(parser, "--env", "for this command")
    parser.add_argument("--timeout", dest="timeout_sec", type=seconds, metavar="TIME", help="then it is killed")


def _copy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="a path here, ID:PATH, or - for standard input")
    parser.add_argument("target", metavar="DST", help="a path here, ID:PATH, or - for standard output")
    parser.add_argument("-u", "--user", help="whose it is in the sandbox (user)")


def _attach(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-u", "--user", help="who the shell runs as (user)")
    parser.add_argument("--cmd", metavar="LINE", help="run this command line in place of a shell")
    parser.add_argument("--new", action="store_true", help="a new shell, even if you left one")
    parser.add_argument("--pid", type=count, metavar="N", help="the shell with this number")
    parser.add_argument("--via-gateway", action="store_true", help="do not go to the host itself")
    parser.add_argument("--detach-key", metavar="KEY", default="ctrl-]", help="leaves the shell running (%(default)s)")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not tell the detach key")


def _events(top: Group) -> None:
    events = _one(top, "events", "events.events", "what happened to a sandbox")
    events.add_argument("--after", type=number, default=0, metavar="SEQ", help="only what came behind it")
    events.add_argument("-f", "--follow", action="store_true", help="go on until it has ended")
    logs = _one(top, "logs", "sandboxes.logs", "what its machine's supervisor logged")
    logs.add_argument("-n", "--lines", type=count, default=200, metavar="N", help="the last N lines (200)")


def _network(top: Group) -> None:
    reach = _one(top, "network", "network.network", "what a sandbox may reach: to look at it, or to change all of it")
    network.add_options(reach, "--policy", "from now on")
    reach.add_argument(
        "--hold",
        dest="hold_sec",
        type=seconds_or_0,
        metavar="TIME",
        help="what nothing allows waits so long for a change of the policy (0)",
    )
    egress = _one(top, "egress", "egress.egress", "what a sandbox tried to reach, and what came of it")
    egress.add_argument("--after", type=number, default=0, metavar="SEQ", help="only what came behind it")
    egress.add_argument("-f", "--follow", action="store_true", help="go on until it has ended")
    egress.add_argument("--refused", action="store_true", help="only what was refused")


def _lives(top: Group) -> None:
    for name, help in (
        ("pause", "put them to sleep on disk"),
        ("hibernate", "put them to sleep in the object store"),
        ("resume", "wake them"),
        ("rm", "destroy them"),
    ):
        many = leaf(top, name, f"sandboxes.{name}", help)
        many.add_argument("sandboxes", metavar="ID", nargs="+")
        if name == "hibernate":
            many.add_argument("--files", action="store_true", help="their files alone: what runs in them ends")
        if name == "rm":
            workspace_parser.add_discard(many)
    recover = _one(top, "recover", "recovering.recover", "the disk of a hibernated one that cannot be woken")
    recover.add_argument("-o", "--output", metavar="FILE", help="where to (ID.ext4.zst; ID.tar.zst of files alone)")
    timeout = _one(top, "timeout", "sandboxes.timeout", "give it so long from now on")
    timeout.add_argument("seconds", metavar="TIME", type=seconds, help="90, 30m, 2h, 1d")


def _preview(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("port", metavar="PORT", type=port)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--public", action="store_true", help="show it to everybody")
    which.add_argument("--private", action="store_true", help="no longer to everybody")
    parser.add_argument("--expires", dest="expires_sec", type=seconds, metavar="TIME", help="how long the link is good")
    parser.add_argument("--open", action="store_true", help="in your browser")


def _keys(keys: Group) -> None:
    leaf(keys, "ls", "admin.keys_ls", "list them")
    create = leaf(keys, "create", "admin.keys_create", "make one, and show its secret this once")
    create.add_argument("--owner", required=True, metavar="NAME", help="who it belongs to")
    create.add_argument("--name", metavar="TEXT", help="for people")
    create.add_argument("--plan", metavar="NAME")
    create.add_argument("--scope", action="append", default=[], choices=("sandboxes", "tasks", "admin"))
    create.add_argument("--rate", type=count, metavar="N", help="requests a second")
    create.add_argument("--expires", type=count, metavar="DAYS", help="when it ends (never)")
    for name in ("vcpus", "memory-mb", "disk-mb"):
        create.add_argument(f"--{name}", type=count, metavar="N", help="of all its sandboxes together")
    network.add_options(create, whose="what its sandboxes may reach, and at most")
    revoke = leaf(keys, "revoke", "admin.keys_revoke", "end one")
    rotate = leaf(keys, "rotate", "admin.keys_rotate", "a new secret for the same rights")
    for parser in (revoke, rotate):
        parser.add_argument("key", metavar="KEY", help="its id, or the first characters of it")
    rotate.add_argument(
        "--grace",
        type=seconds_or_0,
        default=GRACE_S,
        metavar="TIME",
        help="how long the old one is good (%(default)s s)",
    )
