"""`pooldctl pki`: the cluster's own authority, and the folders that hosts and gateways are given. Needs no poold.

An authority's folder has `ca.pem`, `ca.key`, `tickets.key`, `tickets.pub` and `seal.key`. A host's has `ca.pem`,
`host.pem`, `host.key`, `tickets.pub` and `seal.key`; a gateway's has `ca.pem`, `gateway.pem`, `gateway.key` and both of
the tickets' keys.
"""

import errno
from pathlib import Path
from typing import Any

from contract.identity import Identity, Kind
from contract.tickets import public_pems
from poold import files, pki, seal
from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.pki_facts import find_kind, folder_facts
from poold.ctl.program import say
from poold.ctl.told import told
from poold.errors import ConfigError
from warren_console.output import moment

CA, CA_KEY = "ca.pem", "ca.key"
TICKETS, TICKETS_PUBLIC = "tickets.key", "tickets.pub"
SEAL = "seal.key"
Files = dict[str, tuple[bytes, int]]


def init(context: Context) -> int:
    """A new authority, in a folder that is not there yet or is empty."""
    folder = Path(context.asked.folder)
    with told(f"cannot make an authority in {folder}"):
        pair = pki.new_authority(pki.at(context.out.now_ms))
        tickets = pki.new_ticket_key()
        _put_new(
            folder,
            {
                CA: (pair.certificate, files.OPEN),
                CA_KEY: (pair.key, files.PRIVATE),
                TICKETS: (tickets, files.PRIVATE),
                TICKETS_PUBLIC: (pki.ticket_public(tickets), files.OPEN),
                SEAL: (seal.new_key(), files.PRIVATE),
            },
        )
    return _tell(context, folder, "made")


def issue(context: Context) -> int:
    """A new folder for a host or a gateway."""
    asked, out = context.asked, Path(context.asked.out)
    with told(f"cannot issue a certificate for {asked.kind} {asked.name}"):
        whose = Identity(Kind(asked.kind), asked.name)
        made = _authority(Path(asked.folder)).issue(whose, asked.address, pki.at(context.out.now_ms))
        _put_new(out, {**_shared(Path(asked.folder), whose.kind), **_own(whose.kind, made)})
    return _tell(context, out, "issued")


def renew(context: Context) -> int:
    """A new key and a new certificate for the same names; and what the authority's folder has for all."""
    folder, source = Path(context.asked.folder), Path(context.asked.ca)
    with told(f"cannot renew {folder}"):
        kind = _kind(folder)
        old = (folder / f"{kind}.pem").read_bytes()
        authority, said = _authority(source), pki.read(old)
        if said.identity is None or said.identity.kind is not kind or not authority.has_issued(old):
            raise ConfigError(f"{kind}.pem is not of the authority in {source}")
        made = authority.issue(said.identity, said.addresses, pki.at(context.out.now_ms))
        # The certificate comes last. Who is killed before it and does this again is none the worse.
        _put_changed(folder, {**_shared(source, kind), **_own(kind, made)})
    return _tell(context, folder, "renewed")


def rotate_tickets(context: Context) -> int:
    """A new key for tickets beside the one before; with --forget-old, the one before is no longer good."""
    folder = Path(context.asked.folder)
    with told(f"cannot rotate the keys for tickets in {folder}"):
        _authority(folder)  # a gateway's folder has such keys too, and must not have its own
        current = (folder / TICKETS).read_bytes()
        known = public_pems((folder / TICKETS_PUBLIC).read_bytes())
        if context.asked.forget_old:
            files.put(folder / TICKETS_PUBLIC, pki.ticket_public(current))
            say("now renew the folders of all hosts: until then they take tickets of the old key")
        elif len(known) > 1:
            raise ConfigError("the last rotation has not ended: first rotate-tickets --forget-old")
        else:
            new = pki.new_ticket_key()
            # The public keys first: killed between the two, the old key is still in use and still known.
            files.put(folder / TICKETS_PUBLIC, pki.ticket_public(new) + pki.ticket_public(current))
            files.put(folder / TICKETS, new, files.PRIVATE)
            say("now renew the folders of all hosts, then those of all gateways, then rotate-tickets --forget-old")
    return _tell(context, folder, "rotated")


def show(context: Context) -> int:
    """Exits with 1 if the folder is of no use as it is."""
    folder = Path(context.asked.folder)
    with told(f"cannot read {folder}"):
        facts = folder_facts(folder, context.out.now_ms)
    if context.out.as_json:
        context.out.json(facts)
    else:
        context.out.facts(_for_people(facts))
    for line in (*facts["problems"], *facts["warnings"]):
        say(f"{folder}: {line}")
    return errors.FAILED if facts["problems"] else errors.DONE


def _tell(context: Context, folder: Path, done: str) -> int:
    with told(f"cannot read {folder}"):
        facts = folder_facts(folder, context.out.now_ms)
    if context.out.as_json:
        context.out.json(facts)
    else:
        whose = " ".join(filter(None, (facts["kind"], facts["name"])))
        context.out.line(f"{done}: {folder} ({whose}, until {moment(facts['expires_ms'])})")
    return errors.DONE


def _for_people(facts: dict[str, Any]) -> dict[str, object]:
    return {
        "kind": facts["kind"],
        "name": facts["name"] or "-",
        "addresses": " ".join(facts["addresses"]) or "-",
        "serial": facts["serial"],
        "from": moment(facts["starts_ms"]),
        "until": moment(facts["expires_ms"]),
        "tickets": " ".join(facts["tickets"]) or "-",
    }


def _authority(folder: Path) -> pki.Authority:
    return pki.Authority(pki.Pair((folder / CA).read_bytes(), (folder / CA_KEY).read_bytes()))


def _shared(source: Path, kind: Kind) -> Files:
    """What all of a kind have alike."""
    shared = {name: ((source / name).read_bytes(), files.OPEN) for name in (CA, TICKETS_PUBLIC)}
    if kind is Kind.GATEWAY:
        shared[TICKETS] = ((source / TICKETS).read_bytes(), files.PRIVATE)
    else:
        shared[SEAL] = (_seal_key(source), files.PRIVATE)
    return shared


def _seal_key(source: Path) -> bytes:
    """That of the authority. One that was made before there were such keys gets its own now."""
    if not (source / SEAL).exists():
        files.put(source / SEAL, seal.new_key(), files.PRIVATE)
    return (source / SEAL).read_bytes()


def _own(kind: Kind, made: pki.Pair) -> Files:
    return {f"{kind}.key": (made.key, files.PRIVATE), f"{kind}.pem": (made.certificate, files.OPEN)}


def _kind(folder: Path) -> Kind:
    kind = find_kind(folder)
    if kind is None:
        raise ConfigError("it has neither host.pem nor gateway.pem: is it a folder that pki issue made?")
    return kind


def _put_new(folder: Path, contents: Files) -> None:
    if not folder.resolve().parent.is_dir():
        raise ConfigError(f"there is no folder {folder.resolve().parent}")
    try:
        files.put_folder(folder, contents)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError("it is there already, and nothing is overwritten") from None
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise ConfigError("it is not empty, and nothing is overwritten") from None
        raise


def _put_changed(folder: Path, contents: Files) -> None:
    """A file that is as it was is left alone: nobody has to load it again."""
    for name, (data, mode) in contents.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            files.put(path, data, mode)
