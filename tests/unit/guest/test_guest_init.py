"""What the first process does to its machine, in namespaces of its own. The whole of it is tested in machines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from warren_guest import identity

from tests.unit.guest.client import GUEST

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


def run_apart(code: str, *namespaces: str) -> str:
    """What `code` prints, run in new namespaces."""
    argv = ["unshare", *namespaces, sys.executable, "-c", code]
    done = subprocess.run(argv, check=False, cwd=GUEST, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_card_gets_its_address_route_and_neighbour() -> None:
    told = run_apart(
        "import subprocess\n"
        "from warren_guest import syscalls\n"
        "subprocess.run(['ip', 'tuntap', 'add', 'card0', 'mode', 'tap'], check=True)\n"
        "syscalls.link_up('lo')\n"
        "syscalls.configure_link('card0', '172.16.0.2', '255.255.255.252', 1400)\n"
        "syscalls.add_default_route('172.16.0.1')\n"
        "syscalls.add_neighbour('card0', '172.16.0.1', '02:57:41:52:00:01')\n"
        "for what in ('address', 'route', 'neighbour'):\n"
        "    print(subprocess.check_output(['ip', '-4', what, 'show'], text=True), flush=True)\n",
        "--net",
    )
    assert "inet 172.16.0.2/30" in told
    assert "mtu 1400" in told
    assert "MULTICAST,UP" in told
    assert "127.0.0.1/8" in told
    assert "default via 172.16.0.1 dev card0" in told
    assert "172.16.0.1 dev card0 lladdr 02:57:41:52:00:01 PERMANENT" in told


def test_a_certificate_is_trusted_once_and_the_next_one_takes_its_place(tmp_path: Path) -> None:
    told = run_apart(
        "import subprocess, pathlib\n"
        "from warren_guest import identity\n"
        f"identity.CA_FOLDER = '{tmp_path}/folder'\n"
        f"identity.CA_BUNDLE = '{tmp_path}/bundle'\n"
        "bundle = pathlib.Path(identity.CA_BUNDLE)\n"
        "bundle.write_text('others\\n')\n"
        "machine = identity.VirtualMachine(-1)\n"
        "machine.trust('first'); machine.trust('second')\n"
        "print(repr(bundle.read_text()))\n"
        "bundle.write_text('changed\\n')\n"
        "machine.trust('third')\n"
        "print(repr(bundle.read_text()), pathlib.Path(identity.CA_FOLDER, 'warren.crt').read_text().strip())\n",
        "--mount",
    )
    assert told.splitlines() == ["'others\\n\\nsecond\\n'", "'changed\\n\\nthird\\n' third"]


def test_a_host_name_replaces_its_own_line_only(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 old\n10.0.0.1 mine\n")
    (etc / "hostname").symlink_to("/nowhere/else")
    told = run_apart(
        "import subprocess, socket\n"
        "from warren_guest.identity import set_hostname\n"
        f"subprocess.run(['mount', '--bind', '{etc}', '/etc'], check=True)\n"
        "set_hostname('a-longer-name'); set_hostname('new')\n"
        "print(socket.gethostname())\n",
        "--mount",
        "--uts",
    )
    assert told == "new\n"
    assert (etc / "hosts").read_text() == "127.0.0.1 localhost\n10.0.0.1 mine\n127.0.1.1 new\n"
    assert (etc / "hostname").read_text() == "new\n"
    assert not (etc / "hostname").is_symlink()


def test_a_file_that_is_replaced_in_place_keeps_nothing_of_before(tmp_path: Path) -> None:
    file = tmp_path / "f"
    identity.write_text(str(file), "a long line of before")
    identity.write_text(str(file), "short")
    assert file.read_text() == "short"


def test_entropy_is_credited_and_the_generator_reseeded() -> None:
    run_apart(
        "import os\n"
        "from warren_guest import syscalls\n"
        "syscalls.add_entropy(os.open('/dev/urandom', os.O_RDWR), os.urandom(64))\n",
        "--mount",
    )


def test_what_is_started_is_not_shielded_from_the_oom_killer() -> None:
    told = run_apart(
        "import os, subprocess\n"
        "from warren_guest.spawn import OomShield\n"
        "shield = OomShield(os.open('/proc/self/oom_score_adj', os.O_WRONLY))\n"
        "score = ['cat', '/proc/self/oom_score_adj']\n"
        "print(open('/proc/self/oom_score_adj').read().strip())\n"
        "with shield.lowered(), shield.lowered():\n"
        "    print(subprocess.check_output(score, text=True).strip())\n"
        "print(open('/proc/self/oom_score_adj').read().strip())\n",
        "--mount",
    )
    if told.startswith("0"):
        pytest.skip("CAP_SYS_RESOURCE is missing here")
    assert told.split() == ["-1000", "0", "-1000"]
