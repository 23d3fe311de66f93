"""The registries of a host are those of its own clients, and guests are led there without the host's secrets."""

import configparser
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from contract.network import HostRule
from poold.egress.registries import Registries, read_registries
from poold.errors import ConfigError
from tests.unit.egress.egress_host import SECRET, FakeHost, rules


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def test_a_host_without_clients_has_no_registries(host: FakeHost) -> None:
    found = host.read()
    assert (found.hosts, found.env, found.files) == ((), {}, {})
    assert found.notes == tuple(f"{name}: not configured on this host" for name in ("pip", "npm", "apt", "cargo", "go"))


def test_all_clients_together_are_sorted_and_each_place_is_there_once(host: FakeHost) -> None:
    host.write("/etc/pip.conf", "[global]\nindex-url = https://mirror.example.com/simple\n")
    host.write("/home/op/.npmrc", "registry=https://mirror.example.com/npm/\n")
    host.environ["GOPROXY"] = "http://mirror.example.com"
    assert host.read("z.example.org", "a.example.org:8443", "*.example.net", "Mirror.example.com:443").hosts == (
        HostRule("*.example.net", (80, 443)),
        HostRule("a.example.org", (8443,)),
        HostRule("mirror.example.com", (80,)),
        HostRule("mirror.example.com", (443,)),
        HostRule("z.example.org", (80, 443)),
    )


@pytest.mark.parametrize(
    "entry",
    ["", "10.0.0.1", "a b", "https://a.example.com", "a.example.com:0", "a.example.com:65536", "a:b:1", "*", "é.com"],
)
def test_what_the_operator_adds_has_to_be_a_name(host: FakeHost, entry: str) -> None:
    with pytest.raises(ConfigError, match="POOLD_REGISTRIES") as refused:
        host.read(entry)
    assert repr(entry) in str(refused.value)


def test_the_home_may_be_said(host: FakeHost, tmp_path: Path) -> None:
    host.write("/other/.npmrc", "registry = https://npm.example.com\n")
    assert rules(read_registries({}, tmp_path, home=tmp_path / "other")) == ["npm.example.com:443"]
    host.write("/root/.npmrc", "registry = https://root.example.com\n")
    assert rules(read_registries({}, tmp_path)) == ["root.example.com:443"]


# URLs


@pytest.mark.parametrize(
    ("url", "clean", "rule"),
    [
        ("https://a.example.com", "https://a.example.com", "a.example.com:443"),
        ("http://a.example.com/x", "http://a.example.com/x", "a.example.com:80"),
        ("HTTPS://A.Example.com:8443/X/", "https://a.example.com:8443/X/", "a.example.com:8443"),
        (f"https://me:{SECRET}@a.example.com/x", "https://a.example.com/x", "a.example.com:443"),
        (f"https://{SECRET}@a.example.com:1/x", "https://a.example.com:1/x", "a.example.com:1"),
        (f"https://me:{SECRET}@{SECRET}@a.example.com/x", "https://a.example.com/x", "a.example.com:443"),
        ("https://a.example.com./x", "https://a.example.com/x", "a.example.com:443"),
        ("https://mirror/x", "https://mirror/x", "mirror:443"),
    ],
)
def test_a_url_is_a_place_without_user_and_password(host: FakeHost, url: str, clean: str, rule: str) -> None:
    host.environ["GOPROXY"] = url
    found = host.read()
    assert (found.env, rules(found)) == ({"GOPROXY": clean}, [rule])
    assert ("go: GOPROXY: user and password are not given to guests" in found.notes) == ("@" in url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"https://me:{SECRET}@10.0.0.1/x", "address"),
        ("https://[::1]/x", "address"),
        ("https://2130706433/x", "not at a name"),
        ("https://localhost/x", "on this host"),
        ("https://a.localhost:8000/x", "on this host"),
        ("https://localhost.localdomain/x", "on this host"),
        (f"ssh://me:{SECRET}@a.example.com/x", "not at http"),
        ("/opt/packages", "not at http"),
        ("https://", "not a URL"),
        ("https://a.example.com:0/", "not a URL"),
        ("https://a.example.com:x/", "not a URL"),
        ("https://a.example.com:99999/", "not a URL"),
        ("https://[a.example.com/", "not a URL"),
        ("https://ä.example.com/", "not a URL"),
        ("https://a.example.com/a b", "not a URL"),
        ("https://a.example.com/\ninjected=1", "not a URL"),
        ("https://a.example.com/\tx", "not a URL"),
        ('https://a.example.com/"x', "more than a name"),
        ("https://a.example.com/'x", "more than a name"),
        ("https://a.example.com/\\x", "more than a name"),
        ("https://a.example.com/${X}", "more than a name"),
        (f"https://a.example.com/?token={SECRET}", "more than a name"),
        ("https://a.example.com/#x", "more than a name"),
        ("https://*.example.com/x", "not at a name"),
    ],
)
def test_a_url_that_is_of_no_use_is_left_out_with_a_note(host: FakeHost, url: str, why: str) -> None:
    host.environ["PIP_INDEX_URL"] = "https://good.example.com/simple"
    host.environ["GOPROXY"] = url
    found = host.read()
    assert (found.env, rules(found)) == ({}, ["good.example.com:443"])
    (note,) = (note for note in found.notes if "GOPROXY" in note)
    assert why in note


# Files


def test_files_that_cannot_be_read_cost_themselves_only(host: FakeHost) -> None:
    host.write("/etc/pip.conf", b"\xff\xfe")
    host.write("/home/op/.pip/pip.conf", "no section\n")
    host.write("/home/op/.config/pip/pip.conf", "[global]\nindex-url = https://pip.example.com/simple\n")
    host.write("/home/op/.cargo/config.toml", "[broken")
    host.write("/home/op/.npmrc", b"x" * (1 << 20) + b"y")
    host.environ["GOENV"] = "/" + "x" * 5000
    os.makedirs(host.root / "etc/npmrc")
    found = host.read()
    assert rules(found) == ["pip.example.com:443"]
    told = "\n".join(found.notes)
    assert [text in told for text in ("not text", "not understood", "too large", "name too long")] == [True] * 4


def test_a_file_that_we_may_not_read_is_noted(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write("/etc/npmrc", "registry=https://npm.example.com\n")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert any("etc/npmrc is left out: Permission denied" in note for note in host.read().notes)


# pip


def pip_settings(found: Registries) -> dict[str, list[str]]:
    parser = configparser.RawConfigParser()
    parser.read_string(found.files["/etc/pip.conf"])
    assert parser.sections() == ["global"]
    return {key: value.split() for key, value in parser.items("global")}


def test_pip_nearer_settings_come_before_others(host: FakeHost) -> None:
    host.write(
        "/etc/pip.conf",
        f"[global]\nindex_url = https://far.example.com\ntimeout = 5\nextra-index-url =\n  https://u:{SECRET}@one.example.com/s"
        "\n  http://two.example.com:8080/s\nfind-links = /opt/wheels https://links.example.com/w\n"
        "trusted-host = two.example.com:8080 elsewhere.example.com\n  two.example.com ;x\n",
    )
    host.write("/home/op/.pip/pip.conf", "[install]\nindex-url = https://near.example.com/%(x)s\n")
    host.write(
        "/home/op/.config/pip/pip.conf", "[global]\nindex-url = https://middle.example.com\n[list]\nindex-url = x\n"
    )
    found = host.read()
    assert rules(found) == [
        "links.example.com:443",
        "near.example.com:443",
        "one.example.com:443",
        "two.example.com:8080",
    ]
    assert pip_settings(found) == {
        "index-url": ["https://near.example.com/%(x)s"],
        "extra-index-url": ["https://one.example.com/s", "http://two.example.com:8080/s"],
        "find-links": ["https://links.example.com/w"],
        "trusted-host": ["two.example.com:8080", "two.example.com"],
    }
    assert "pip: find-links is left out: it is not at http:// or https://" in found.notes

    host.environ |= {
        "PIP_INDEX_URL": "https://env.example.com",
        "PIP_CONFIG_FILE": "/srv/pip.conf",
        "PIP_FIND_LINKS": "",
    }
    host.write("/srv/pip.conf", "[install]\nfind-links = https://srv.example.com\n")
    assert rules(host.read()) == [
        "env.example.com:443",
        "one.example.com:443",
        "srv.example.com:443",
        "two.example.com:8080",
    ]

    host.environ["PIP_CONFIG_FILE"] = os.devnull
    assert rules(host.read()) == ["env.example.com:443"]

    del host.environ["PIP_CONFIG_FILE"], host.environ["PIP_INDEX_URL"]
    host.environ["XDG_CONFIG_HOME"] = "/xdg"
    host.write("/xdg/pip/pip.conf", "[install]\nindex-url = https://xdg.example.com\n")
    assert "xdg.example.com:443" in rules(host.read())


# npm


def test_npm_registries_of_scopes_and_no_tokens(host: FakeHost) -> None:
    host.write("/etc/npmrc", "registry=https://far.example.com/\n@far:registry=https://scope.example.com/npm/\n")
    host.write(
        "/home/op/.npmrc",
        f'; x\n# registry=https://no.example.com\nregistry = "https://me:{SECRET}@near.example.com/npm/"\n'
        f"//near.example.com/npm/:_authToken={SECRET}\n@bad scope:registry=https://no.example.com\n"
        "@odd:registry=https://${HOST}/\nfund=false\nnothing\n",
    )
    found = host.read()
    assert rules(found) == ["near.example.com:443", "scope.example.com:443"]
    text = "@far:registry=https://scope.example.com/npm/\nregistry=https://near.example.com/npm/\n"
    assert found.files == {"/home/user/.npmrc": text, "/root/.npmrc": text}
    assert "npm: credentials are not given to guests" in found.notes

    host.environ["NPM_CONFIG_REGISTRY"] = "http://env.example.com:4873"
    assert rules(host.read()) == ["env.example.com:4873", "scope.example.com:443"]
    host.environ["npm_config_registry"] = "https://small.example.com"
    host.environ["NPM_CONFIG_USERCONFIG"] = "/nowhere"
    host.environ["NPM_CONFIG_GLOBALCONFIG"] = "/nowhere"
    assert rules(host.read()) == ["small.example.com:443"]


# Go


@pytest.mark.parametrize(
    ("proxies", "kept", "hosts"),
    [
        ("https://go.example.com,direct", "https://go.example.com,direct", ["go.example.com:443"]),
        (
            f"https://u:{SECRET}@a.example.com|http://b.example.com:81,off",
            "https://a.example.com|http://b.example.com:81,off",
            ["a.example.com:443", "b.example.com:81"],
        ),
        ("https://10.0.0.1|https://b.example.com,direct", "https://b.example.com,direct", ["b.example.com:443"]),
        (",https://b.example.com,,", "https://b.example.com", ["b.example.com:443"]),
        ("direct", None, []),
        ("off", None, []),
        ("file:///srv/go,direct", None, []),
    ],
)
def test_go_proxies(host: FakeHost, proxies: str, kept: str | None, hosts: list[str]) -> None:
    host.environ["GOPROXY"] = proxies
    found = host.read()
    assert (found.env.get("GOPROXY"), rules(found)) == (kept, hosts)


@pytest.mark.parametrize(
    ("sums", "kept", "hosts"),
    [
        ("off", "off", []),
        ("sum.example.com", "sum.example.com", ["sum.example.com:443"]),
        ("sum.example.com+033de0ae+Ac4zctda", "sum.example.com+033de0ae+Ac4zctda", ["sum.example.com:443"]),
        ("sum.example.com https://m.example.com/s", "sum.example.com https://m.example.com/s", ["m.example.com:443"]),
        ("sum.example.com https://10.0.0.1/s", None, []),
        ("10.0.0.1", None, []),
        ("sum example\n", None, []),
        ("$(x)", None, []),
    ],
)
def test_go_sums(host: FakeHost, sums: str, kept: str | None, hosts: list[str]) -> None:
    host.environ["GOSUMDB"] = sums
    found = host.read()
    assert (found.env.get("GOSUMDB"), rules(found)) == (kept, hosts)


def test_go_reads_its_own_file(host: FakeHost) -> None:
    host.write("/home/op/.config/go/env", "GOFLAGS=-x\nGOPROXY=https://file.example.com\nGOSUMDB=off\n")
    assert host.read().env == {"GOPROXY": "https://file.example.com", "GOSUMDB": "off"}
    host.environ["GOPROXY"] = "https://env.example.com"
    assert host.read().env == {"GOPROXY": "https://env.example.com", "GOSUMDB": "off"}
    host.environ["GOENV"] = "off"
    assert host.read().env == {"GOPROXY": "https://env.example.com"}
    host.environ["GOENV"] = "/srv/goenv"
    host.write("/srv/goenv", "GOSUMDB=sum.example.com")
    assert host.read().env == {"GOPROXY": "https://env.example.com", "GOSUMDB": "sum.example.com"}
    del host.environ["GOENV"], host.environ["GOPROXY"]
    host.environ["XDG_CONFIG_HOME"] = "/xdg"
    host.write("/xdg/go/env", "GOPROXY=https://xdg.example.com")
    assert host.read().env == {"GOPROXY": "https://xdg.example.com"}


# cargo


def cargo_settings(found: Registries) -> object:
    assert found.files["/home/user/.cargo/config.toml"] == found.files["/root/.cargo/config.toml"]
    return tomllib.loads(found.files["/root/.cargo/config.toml"])


def test_cargo_registries_and_sources(host: FakeHost) -> None:
    host.write(
        "/home/op/.cargo/config.toml",
        f"""
        [registry]
        token = "{SECRET}"
        [registries.ours]
        index = "sparse+https://u:{SECRET}@crates.example.com/index/"
        token = "{SECRET}"
        [registries.old]
        index = "https://git.example.com/index.git"
        [registries.far]
        index = "ssh://git@git.example.com/index.git"
        [registries."a b"]
        index = "https://odd.example.com"
        [source.upstream]
        replace-with = "between"
        [source.between]
        replace-with = "mirror"
        [source.mirror]
        registry = "sparse+https://mirror.example.com/"
        [source.vendored]
        directory = "vendor"
        [source.lost]
        replace-with = "vendored"
        [source.odd]
        registry = 3
        replace-with = ["x"]
        [source.round]
        registry = "https://round.example.com"
        replace-with = "round"
        """,
    )
    found = host.read()
    assert rules(found) == [
        "crates.example.com:443",
        "git.example.com:443",
        "mirror.example.com:443",
        "round.example.com:443",
    ]
    assert cargo_settings(found) == {
        "registries": {
            "ours": {"index": "sparse+https://crates.example.com/index/"},
            "old": {"index": "https://git.example.com/index.git"},
        },
        "source": {
            "upstream": {"replace-with": "mirror"},
            "between": {"replace-with": "mirror"},
            "mirror": {"registry": "sparse+https://mirror.example.com/"},
            "round": {"registry": "https://round.example.com"},
        },
    }
    assert "cargo: tokens are not given to guests" in found.notes


def test_cargo_has_a_home_and_an_older_name_for_its_file(host: FakeHost) -> None:
    host.write("/home/op/.cargo/config.toml", '[registries.a]\nindex = "https://a.example.com"\n')
    host.write("/home/op/.cargo/config", '[registries.b]\nindex = "https://b.example.com"\n')
    assert rules(host.read()) == ["b.example.com:443"]
    host.environ["CARGO_HOME"] = "/opt/cargo"
    host.write("/opt/cargo/config.toml", 'registries = 3\nsource = {x = 4}\nregistry = "x"\n')
    assert rules(host.read()) == []


def test_what_may_be_a_password_in_a_path_is_left_out(host: FakeHost) -> None:
    host.environ["PIP_INDEX_URL"] = f"https://a.example.com/u:{SECRET}@/simple"
    assert rules(host.read()) == []


# Whatever the files say

MARKS = ("=", ":", "\n", "\n\n", " ", "\t", '"', "'", "\r", "\\", "\0", "#", ";", "%", "${X}", "[global]", "[source.a]")
KEYS = ("registry", "index-url", "index", "replace-with", "@a:registry=", "GOPROXY=", "GOSUMDB=", "[registries.a]")
APT = ("deb", "Types: deb", "URIs:", "Suites: x", "Components: y", "Signed-By:")
URLS = ("https://a.example.com/x", f"https://u:{SECRET}@b.example.com/")
words = st.one_of(st.text(max_size=40), st.sampled_from((*MARKS, *KEYS, *APT, *URLS)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(words, max_size=30).map("".join))
def test_whatever_is_in_them_files_never_crash_nor_leak(host: FakeHost, text: str) -> None:
    assume(SECRET not in text.lower().replace(f"u:{SECRET}@", ""))  # in a name or a path it is none
    data = text.encode("utf-8", "surrogatepass")
    for path in ("etc/pip.conf", "home/op/.npmrc", "etc/apt/sources.list", "etc/apt/sources.list.d/a.sources"):
        host.write(path, data)
    host.write("home/op/.cargo/config.toml", data)
    host.write("home/op/.config/go/env", data)
    host.environ |= {"GOPROXY": text, "PIP_INDEX_URL": text, "NPM_CONFIG_REGISTRY": text}
    found = host.read()
    assert {rule.host for rule in found.hosts} <= {"a.example.com", "b.example.com"} or "example" not in text
    for path, written in found.files.items():
        if path.endswith(".toml"):
            tomllib.loads(written)
        if path.endswith("pip.conf"):
            assert set(pip_settings(found)) <= {"index-url", "extra-index-url", "find-links", "trusted-host"}
    assert all("\n" not in value for value in found.env.values())
