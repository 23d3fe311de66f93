"""image.toml: what is accepted, and that every refusal names file, field and value."""

from pathlib import Path

import pytest

from images.errors import ImageError
from images.recipe import known_images, load

_RECIPES = Path(__file__).resolve().parents[3] / "images"

_GOOD = """
name = "small"
size_mb = 64
packages = ["git", "bash"]
setup = ["mkdir /workspace"]

[[users]]
name = "user"
uid = 1000
home = "/home/user"
shell = "/bin/bash"
sudo = true

[defaults]
vcpus = 1
memory_mb = 256
disk_mb = 512
"""

_ON_TOP = """
name = "large"
base = "small"
size_mb = 128
packages = ["gcc", "git"]
setup = ["true"]
[defaults]
vcpus = 2
memory_mb = 512
disk_mb = 1024
"""


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "image.toml").write_text(text)


def test_an_image_with_a_base_has_all_of_the_base_and_its_own_sizes(tmp_path: Path) -> None:
    _write(tmp_path, "small", _GOOD)
    _write(tmp_path, "large", _ON_TOP)
    large = load(tmp_path, "large")
    assert large.packages == ("bash", "gcc", "git")
    assert [user.name for user in large.users] == ["user"]
    assert large.setup == ("mkdir /workspace", "true")
    assert (large.size_mb, large.defaults.vcpus) == (128, 2)
    assert [path.parent.name for path in large.files] == ["small", "large"]


def test_an_unknown_image_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    _write(tmp_path, "small", _GOOD)
    with pytest.raises(ImageError, match=r"'tiny'\n.*known: small"):
        load(tmp_path, "tiny")


def test_a_name_cannot_reach_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    _write(tmp_path, "small", _GOOD)
    with pytest.raises(ImageError, match="no image called"):
        load(tmp_path / "inside", "../small")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name = "small"', 'name = "other"', r"name = 'other': must be that of its folder, 'small'"),
        ("size_mb = 64", "size_mb = 1", r"size_mb = 1: must be a whole number from 16"),
        ("size_mb = 64", "size_mb = true", r"size_mb = True: must be a whole number"),
        ("size_mb = 64", "", r"size_mb: is missing"),
        ("size_mb = 64", "size_mb = 64\nsise = 3", r"sise = 3: no such field"),
        ('["git", "bash"]', '["git", "ba sh"]', r"packages = 'ba sh': must be text like"),
        ('["git", "bash"]', '["--option"]', r"packages = '--option': must be text like"),
        ('["git", "bash"]', '"git"', r"packages = 'git': must be a list"),
        ('["mkdir /workspace"]', '[""]', r"setup = '': must be text like a shell line"),
        ("uid = 1000", "uid = 0", r"users\[0\]: uid = 0: must be a whole number from 900"),
        ("uid = 1000", "uid = 990", r"users\[0\]: sudo = True: an account of a program"),
        ('home = "/home/user"', 'home = "$(id)"', r"users\[0\]: home = '\$\(id\)': must be text like"),
        ("sudo = true", 'sudo = "yes"', r"users\[0\]: sudo = 'yes': must be true or false"),
        ("vcpus = 1", "vcpus = 0", r"defaults: vcpus = 0: must be a whole number from 1"),
        ("[defaults]", "[other]", r"defaults: is missing"),
        ('name = "small"', "name = ", r"not valid TOML"),
        ("size_mb = 64", 'size_mb = 64\nbase = "gone"', r"base = 'gone': no such image"),
        ("size_mb = 64", 'size_mb = 64\nbase = "small"', r"small → small"),
    ],
)
def test_a_bad_field_is_refused_with_its_name_and_value(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in _GOOD
    _write(tmp_path, "small", _GOOD.replace(old, new, 1))
    with pytest.raises(ImageError, match=complaint):
        load(tmp_path, "small")


def test_a_user_that_the_base_has_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, "small", _GOOD)
    _write(tmp_path, "large", _GOOD.replace('name = "small"', 'name = "large"\nbase = "small"', 1))
    with pytest.raises(ImageError, match=r"users = \['user'\]: the base 'small' has them already"):
        load(tmp_path, "large")


_NPM = f"""
[[npm]]
name = "@scope/tool"
version = "1.2.3-linux-x64"
integrity = "sha512-{"A" * 86}=="
files = {{ "bin/tool" = "/usr/local/bin/tool" }}

[[supplied]]
variable = "WARREN_TOOL"
folder = "/opt/tool"
programs = ["bin/tool"]
"""


def test_packages_of_npm_and_supplied_archives_come_after_those_of_the_base(tmp_path: Path) -> None:
    _write(tmp_path, "small", _GOOD + _NPM)
    _write(tmp_path, "large", _ON_TOP + _NPM.replace("@scope/tool", "other"))
    large = load(tmp_path, "large")
    assert [package.name for package in large.npm] == ["@scope/tool", "other"]
    assert large.npm[0].files == {"bin/tool": "/usr/local/bin/tool"}
    assert [(each.variable, each.archive) for each in large.supplied] == [("WARREN_TOOL", None)] * 2


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"@scope/tool"', '"../tool"', r"npm\[0\]: name = '../tool': must be text like"),
        ('"@scope/tool"', '"--tool"', r"npm\[0\]: name = '--tool': must be text like"),
        ('"1.2.3-linux-x64"', '"^1.2.3"', r"npm\[0\]: version = '\^1.2.3': must be text like"),
        ('"1.2.3-linux-x64"', '"latest"', r"npm\[0\]: version = 'latest'"),
        ("sha512-", "sha1-", r"npm\[0\]: integrity = 'sha1-"),
        ('{ "bin/tool" = "/usr/local/bin/tool" }', "{}", r"files = {}: must name something"),
        ('"bin/tool" =', '"../tool" =', r"files = '../tool': must be a path in the archive"),
        ('"bin/tool" =', '"/bin/tool" =', r"files = '/bin/tool': must be a path in the archive"),
        ('"/usr/local/bin/tool"', '"/usr/bin/tool"', r"files.bin/tool = '/usr/bin/tool': must be a path below"),
        ('"/usr/local/bin/tool"', '"/opt/../etc/tool"', r"files.bin/tool = '/opt/../etc/tool': must be a path below"),
        ('"/usr/local/bin/tool"', '"/usr/localx"', r"files.bin/tool = '/usr/localx': must be a path below"),
        ('"WARREN_TOOL"', '"PATH"', r"supplied\[0\]: variable = 'PATH': must be text like"),
        ('"/opt/tool"', '"/etc"', r"supplied\[0\]: folder = '/etc': must be text like"),
        ('["bin/tool"]', '["../tool"]', r"supplied\[0\]: programs = '../tool': must be text like"),
        ('folder = "/opt/tool"', 'folder = "/opt/tool"\nurl = "x"', r"supplied\[0\]: url = 'x': no such field"),
    ],
)
def test_a_bad_field_of_what_is_not_debians_is_refused(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in _NPM
    _write(tmp_path, "small", _GOOD + _NPM.replace(old, new, 1))
    with pytest.raises(ImageError, match=complaint):
        load(tmp_path, "small")


@pytest.mark.parametrize("text", ["tool.tar.gz", "/nowhere/tool.tar.gz", "/etc/passwd", "/etc"])
def test_a_supplied_archive_that_is_none_is_refused_by_its_variable(tmp_path: Path, text: str) -> None:
    _write(tmp_path, "small", _GOOD + _NPM)
    assert load(tmp_path, "small", environ={"WARREN_TOOL": ""}).supplied_inputs() == {}
    with pytest.raises(ImageError, match=f"WARREN_TOOL = '{text}': must be the absolute path"):
        load(tmp_path, "small", environ={"WARREN_TOOL": text})


def test_agents_get_no_network_that_their_task_did_not_ask_for() -> None:
    agent = load(_RECIPES, "agent")
    assert agent.network is None
    assert (agent.defaults.vcpus, agent.defaults.memory_mb, agent.defaults.disk_mb) == (2, 2048, 8192)


@pytest.mark.parametrize("name", known_images(_RECIPES))
def test_every_image_has_what_the_guest_and_agents_count_on(name: str) -> None:
    recipe = load(_RECIPES, name)
    needed = {"bash", "ca-certificates", "curl", "git", "iproute2", "procps", "python-is-python3", "python3", "sudo"}
    assert needed <= set(recipe.packages)
    user, keeper = recipe.users[:2]
    assert (keeper.name, keeper.uid, keeper.shell, keeper.sudo) == ("warren-git", 990, "/usr/sbin/nologin", False)
    assert any("dpkg-divert" in step and "/usr/bin/git" in step for step in recipe.setup)
    assert (user.name, user.uid, user.home, user.shell, user.sudo) == ("user", 1000, "/home/user", "/bin/bash", True)
    assert any("/workspace" in step for step in recipe.setup)
