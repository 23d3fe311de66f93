"""The environment is checked as a whole, and messages name the variable and the value."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.config import DEFAULT_STATE_DIR, Config, PoolSize, S3Config, TasksConfig
from poold.errors import ConfigError
from poold.git_author import GitAuthor


def read(cpus: int = 2, memory_mb: int = 8192, **environ: str) -> Config:
    return Config.from_environment(environ, host_memory_mb=memory_mb, host_cpus=cpus)


def test_an_empty_environment_is_a_whole_configuration() -> None:
    config = read()
    assert (config.host, config.port, config.engine) == ("127.0.0.1", 7070, "qemu")
    assert (config.name, config.advertise) == ("localhost", "http://127.0.0.1:7070")
    assert (config.pki, config.registry, config.is_tls) == (None, None, False)
    assert config.memory_budget_mb == 8192 * 8 // 10
    assert config.pool == {"python": PoolSize(2, 8)}
    assert config.images_dir == config.state_dir / "images"
    assert config.tasks == TasksConfig(store=config.state_dir / "store")
    local = read(POOLD_ENGINE="local")
    assert (local.default_image, list(local.pool)) == ("host", ["host"])


@pytest.mark.parametrize(("cpus", "memory_mb"), [(1, 512), (64, 65_536), (512, 4_194_304)])
def test_the_defaults_hold_on_small_and_large_hosts(cpus: int, memory_mb: int) -> None:
    config = read(cpus, memory_mb)
    assert 1 <= config.limits.vcpus <= 255
    assert config.limits.memory_mb <= config.memory_budget_mb


GOOD = [
    ("POOLD_LISTEN", "127.0.0.1:80", lambda c: (c.host, c.port), ("127.0.0.1", 80)),
    ("POOLD_LISTEN", "127.9.9.9:65535", lambda c: (c.host, c.port), ("127.9.9.9", 65535)),
    ("POOLD_LISTEN", "[::1]:7070", lambda c: (c.host, c.port), ("::1", 7070)),
    ("POOLD_LISTEN", "[::1]:7070", lambda c: c.advertise, "http://[::1]:7070"),
    ("POOLD_ADVERTISE", "http://127.0.0.1:1", lambda c: c.advertise, "http://127.0.0.1:1"),
    ("POOLD_NAME", "rack-1.example", lambda c: c.name, "rack-1.example"),
    ("POOLD_REGISTRY", "/srv/registry", lambda c: c.registry, Path("/srv/registry")),
    ("POOLD_REGISTRY", "", lambda c: c.registry, None),
    ("POOLD_REGISTRY", "s3://bucket/c1/registry", lambda c: c.registry, S3Config("bucket", "c1/registry")),
    ("POOLD_STORE", "s3://bucket", lambda c: c.registry, S3Config("bucket", "registry")),
    ("POOLD_STORE", "s3://bucket/a/b/c", lambda c: c.registry, S3Config("bucket", "a/b/c/registry")),
    ("POOLD_STORE", "/srv/store", lambda c: c.registry, Path("/srv/store/registry")),
    ("POOLD_ENGINE", "local", lambda c: c.engine, "local"),
    ("POOLD_STATE_DIR", "/srv/warren", lambda c: c.images_dir, Path("/srv/warren/images")),
    ("POOLD_RUN_DIR", "/run/w", lambda c: c.run_dir, Path("/run/w")),
    ("POOLD_IMAGES", "/images", lambda c: c.images_dir, Path("/images")),
    ("POOLD_SLOTS", "4096", lambda c: c.slots, 4096),
    ("POOLD_BASE_UID", "1000", lambda c: c.base_uid, 1000),
    ("POOLD_MEMORY_MB", "256", lambda c: c.memory_budget_mb, 256),
    ("POOLD_MAX_VCPUS", "255", lambda c: c.limits.vcpus, 255),
    ("POOLD_MAX_MEMORY_MB", "128", lambda c: c.limits.memory_mb, 128),
    ("POOLD_MAX_DISK_MB", "128", lambda c: c.limits.disk_mb, 128),
    ("POOLD_DEFAULT_IMAGE", "minimal", lambda c: c.default_image, "minimal"),
    ("POOLD_DEFAULT_TIMEOUT_SEC", "60", lambda c: c.rules.timeout_sec, 60),
    ("POOLD_GUEST", "/guest", lambda c: c.guest_path, Path("/guest")),
    ("POOLD_POOL", "", lambda c: c.pool, {}),
    ("POOLD_POOL", "a=1", lambda c: c.pool, {"a": PoolSize(1, 1)}),
    ("POOLD_POOL", "a=0", lambda c: c.pool, {"a": PoolSize(0, 1)}),
    ("POOLD_SECRETS", "/usr", lambda c: c.tasks.secrets, Path("/usr")),
    ("POOLD_SECRETS", "", lambda c: c.tasks.secrets, None),
    ("POOLD_GIT_AUTHOR", "A B. Ç <a+b@c.d>", lambda c: c.tasks.author, GitAuthor("A B. Ç", "a+b@c.d")),
    ("POOLD_GIT_PROTECTED", " main, v?.* ,", lambda c: c.tasks.protected, ("main", "v?.*")),
    ("POOLD_GIT_PROTECTED", "", lambda c: c.tasks.protected, ()),
    ("POOLD_PRICES", "/prices.toml", lambda c: c.tasks.prices, Path("/prices.toml")),
    ("POOLD_TASKS_QUEUE", "1", lambda c: c.tasks.queue, 1),
    ("POOLD_LEASE_SEC", "30", lambda c: c.lease_s, 30),
    ("POOLD_STORE", "/srv/store", lambda c: c.tasks.store, Path("/srv/store")),
    ("POOLD_STORE", "/srv/store", lambda c: c.durability, "local"),
    ("POOLD_STORE", "s3://bucket/one", lambda c: c.durability, "replicated"),
    ("POOLD_STORE", "/srv/store", lambda c: (c.store, c.tasks.is_shared), (Path("/srv/store"), True)),
    ("POOLD_STORE", "", lambda c: (c.store, c.tasks.is_shared), (None, False)),
    ("POOLD_STORE", "s3://my.bucket-1", lambda c: c.store, S3Config("my.bucket-1")),
    (
        "POOLD_STORE",
        "s3://bucket/a/B_1",
        lambda c: (str(c.store), c.store),
        ("s3://bucket/a/B_1", S3Config("bucket", "a/B_1")),
    ),
    (
        "POOLD_STORE",
        "s3://bucket/a/",
        lambda c: (c.tasks.store, c.tasks.is_shared),
        (DEFAULT_STATE_DIR / "store", False),
    ),
    ("POOLD_STATE_DIR", "/srv/warren", lambda c: c.tasks.store, Path("/srv/warren/store")),
    ("POOLD_ARCHIVE_MB", "10", lambda c: c.tasks.archive_mb, 10),
    ("POOLD_POOL", " a=1-2 , b-c=0-3,", lambda c: c.pool, {"a": PoolSize(1, 2), "b-c": PoolSize(0, 3)}),
]


@pytest.mark.parametrize(("name", "value", "ask", "expected"), GOOD)
def test_each_variable_is_read(name: str, value: str, ask: object, expected: object) -> None:
    assert ask(read(**{name: value})) == expected  # type: ignore[operator]


BAD = {
    "POOLD_LISTEN": [
        *("0.0.0.0:7070", "[::]:7070", "192.168.0.1:7070", "10.0.0.1:80", "8.8.8.8:53", "[2001:db8::1]:80"),
        *("localhost:7070", "example.org:80", "7070", ":7070", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0"),
        *("127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:²", "127.0.0.1:" + "9" * 5000, "", "\n", "127.0.0.1:80\n"),
        *("127.1:80", "2130706433:80"),
    ],
    "POOLD_NAME": ["", "A", "a_b", "-a", "a" * 64, "ä", "a b", "a\n"],
    "POOLD_ADVERTISE": ["", "127.0.0.1:7070", "https://a:1", "http://10.0.0.1:7070", "http://127.0.0.1", "ftp://a:1"],
    "POOLD_PKI": ["/dev/null", "/dev/null/pki", "no-such-folder"],
    "POOLD_ENGINE": ["", "docker", "QEMU", "qemu "],
    "POOLD_SLOTS": ["0", "-1", "4097", "1.5", "", "x", "1e3", "²", "9" * 5000, " 4", "4\n"],
    "POOLD_BASE_UID": ["0", "999", "-1", "root"],
    "POOLD_MEMORY_MB": ["0", "255", "1G", "-256"],
    "POOLD_MAX_VCPUS": ["0", "256", "many"],
    "POOLD_MAX_MEMORY_MB": ["127", "-1", "x"],
    "POOLD_MAX_DISK_MB": ["127", "-1", "x"],
    "POOLD_DEFAULT_TIMEOUT_SEC": ["0", "-1", "never", "2592001"],
    "POOLD_STORE": [
        *("s3://", "s3://b", "s3://Bucket", "s3://bucket//a", "s3://bucket/../a", "s3://bucket/.a", "s3://bucket/a b"),
        *("s3://bucket/a/b/c/d", "http://bucket/a", "s3://user:secret@bucket/a", "s3://bucket/a?x=1"),
    ],
    "POOLD_STORE_ENCRYPTION": ["aes256", "AES", "aws:kms:", "aws:kms:a b", "none", "AES256\n"],
    "POOLD_STORE_ADDRESSING": ["", "PATH", "host"],
    "POOLD_LEASE_SEC": ["1", "3601", "x", ""],
    "POOLD_STORE_REQUESTS": ["0", "257", "x", ""],
    "POOLD_STORE_TIMEOUT_SEC": ["0", "601", "1.5"],
    "POOLD_SECRETS": ["/dev/null", "no-such-folder"],
    "POOLD_GIT_AUTHOR": [
        *("", "Ann", "ann@example.com", "<ann@example.com>", "Ann <ann>", "Ann <a@b@c>", "Ann <a@b> ", "A<b <a@b>"),
        *("Ann\n <a@b>", "Ann <a@b\n>", " Ann <a@b>", "A" * 129 + " <a@b>", "Ann\u2028 <a@b>", "\udcff <a@b>"),
    ],
    "POOLD_GIT_PROTECTED": ["main,a b", "-\n-", "[a-z]", "a" * 256],
    "POOLD_TASKS_QUEUE": ["0", "-1", "1000001", "x"],
    "POOLD_ARCHIVE_MB": ["0", "16777217", ""],
    "POOLD_POOL": ["python", "python=", "python=x", "=1", "python=3-2", "Python=1", "python=1-", "a=1 b=2", "a=-1"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**{name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@given(st.sampled_from(sorted(BAD)), st.text())
def test_any_text_is_a_value_or_a_config_error(name: str, value: str) -> None:
    try:
        read(**{name: value})
    except ConfigError as error:
        message = str(error)
        assert name in message


@given(st.ip_addresses(), st.integers(1, 65535))
def test_only_loopback_is_listened_on(address: object, port: int) -> None:
    text = f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"
    try:
        config = read(POOLD_LISTEN=text)
    except ConfigError:
        assert not address.is_loopback  # type: ignore[attr-defined]
    else:
        assert address.is_loopback  # type: ignore[attr-defined]
        assert config.port == port


# Beyond loopback.


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    for name in ("ca.pem", "host.pem", "host.key"):
        (tmp_path / name).touch()
    return tmp_path


def test_the_hosts_name_is_the_machines_unless_another_is_given() -> None:
    config = Config.from_environment({}, host_memory_mb=8192, host_cpus=2, hostname="Rack-1.Example")
    assert config.name == "rack-1.example"
    with pytest.raises(ConfigError, match="POOLD_NAME"):
        Config.from_environment({}, host_memory_mb=8192, host_cpus=2, hostname="my_laptop")


def test_with_certificates_every_address_may_be_listened_on(pki: Path) -> None:
    config = read(POOLD_LISTEN="10.0.0.1:7070", POOLD_PKI=str(pki))
    assert (config.host, config.is_tls, config.advertise) == ("10.0.0.1", True, "https://10.0.0.1:7070")
    assert read(POOLD_LISTEN="[2001:db8::1]:80", POOLD_PKI=str(pki)).advertise == "https://[2001:db8::1]:80"
    assert read(POOLD_PKI=str(pki)).is_tls


@pytest.mark.parametrize("missing", ["ca.pem", "host.pem", "host.key"])
def test_a_folder_without_all_certificates_serves_loopback_only(pki: Path, missing: str) -> None:
    (pki / missing).unlink()
    assert not read(POOLD_PKI=str(pki)).is_tls
    with pytest.raises(ConfigError, match="loopback"):
        read(POOLD_LISTEN="10.0.0.1:7070", POOLD_PKI=str(pki))


def test_an_engine_that_isolates_nothing_serves_loopback_only(pki: Path) -> None:
    with pytest.raises(ConfigError, match="POOLD_LISTEN"):
        read(POOLD_ENGINE="local", POOLD_LISTEN="10.0.0.1:7070", POOLD_PKI=str(pki))
    assert read(POOLD_ENGINE="local", POOLD_PKI=str(pki)).is_tls


def test_who_listens_everywhere_says_where_gateways_find_them(pki: Path) -> None:
    with pytest.raises(ConfigError, match="POOLD_ADVERTISE"):
        read(POOLD_LISTEN="0.0.0.0:7070", POOLD_PKI=str(pki))
    with pytest.raises(ConfigError, match="POOLD_ADVERTISE"):  # plain HTTP is not what this port speaks
        read(POOLD_LISTEN="0.0.0.0:7070", POOLD_PKI=str(pki), POOLD_ADVERTISE="http://127.0.0.1:7070")
    config = read(POOLD_LISTEN="0.0.0.0:7070", POOLD_PKI=str(pki), POOLD_ADVERTISE="https://rack-1.example:7070")
    assert config.advertise == "https://rack-1.example:7070"


S3_SETTINGS = [
    ("POOLD_STORE_ENCRYPTION", "AES256", "encryption_parameters", {"ServerSideEncryption": "AES256"}),
    ("POOLD_STORE_ENCRYPTION", "aws:kms", "encryption_parameters", {"ServerSideEncryption": "aws:kms"}),
    (
        *("POOLD_STORE_ENCRYPTION", "aws:kms:arn:aws:kms:eu:1:key/k-1", "encryption_parameters"),
        {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:aws:kms:eu:1:key/k-1"},
    ),
    ("POOLD_STORE_ENCRYPTION", "", "encryption_parameters", {}),
    ("POOLD_STORE_ADDRESSING", "path", "addressing", "path"),
    ("POOLD_STORE_REQUESTS", "256", "requests", 256),
    ("POOLD_STORE_TIMEOUT_SEC", "1", "timeout_s", 1),
]


@pytest.mark.parametrize(("name", "value", "field", "expected"), S3_SETTINGS)
def test_each_setting_of_s3_is_read(name: str, value: str, field: str, expected: object) -> None:
    assert getattr(read(**{"POOLD_STORE": "s3://bucket", name: value}).store, field) == expected


def test_what_is_acknowledged_when_is_chosen_and_needs_a_store() -> None:
    assert read(POOLD_STORE="s3://bucket", POOLD_DURABILITY="local").durability == "local"
    assert read(POOLD_STORE="/srv/store", POOLD_DURABILITY="replicated").durability == "replicated"
    assert read().durability == "local"
    with pytest.raises(ConfigError, match="POOLD_DURABILITY=replicated needs a store"):
        read(POOLD_DURABILITY="replicated")
    with pytest.raises(ConfigError, match=r"POOLD_DURABILITY.*'fast'"):
        read(POOLD_DURABILITY="fast")
