"""Where a replica is, and how Litestream is told: settings without secrets, and an environment with them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poold.places import S3Config
from poold.replica.errors import ReplicaError

log = logging.getLogger("poold.replica")

USUAL_REGION = "us-east-1"  # of servers that are not Amazon's and do not care
# What Litestream is given of our environment, besides AWS's own settings: where those are kept, and how to get there.
PASSED_ON = frozenset(
    {"HOME", "PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
    | {"http_proxy", "https_proxy", "no_proxy"}
)


@dataclass(frozen=True)
class Folder:
    """A replica in a folder."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def settings(self, _environ: Mapping[str, str]) -> dict[str, Any]:
        return {"type": "file", "path": str(self.path)}


@dataclass(frozen=True)
class S3:
    """A replica in S3. Who we are there, and where it is, AWS's own settings say."""

    config: S3Config
    path: str  # of its objects, with the cluster's prefix

    def __str__(self) -> str:
        return f"s3://{self.config.bucket}/{self.path}"

    def settings(self, environ: Mapping[str, str]) -> dict[str, Any]:
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or (endpoint and USUAL_REGION)
        by_path = self.config.addressing == "path" or (self.config.addressing == "auto" and endpoint is not None)
        told = {
            "endpoint": endpoint,
            "region": region,
            "force-path-style": by_path or None,
            "sse-kms-key-id": self.config.encryption_parameters.get("SSEKMSKeyId"),
        }
        given = {name: value for name, value in told.items() if value is not None}
        return {"type": "s3", "bucket": self.config.bucket, "path": self.path, **given}

    @property
    def untold(self) -> str | None:
        """The encryption that the store was asked for and Litestream cannot be told: it knows keys of KMS alone."""
        is_told = "SSEKMSKeyId" in self.config.encryption_parameters
        return None if is_told else self.config.encryption or None


Target = Folder | S3


def warn_of_untold(target: Target) -> None:
    """Say it in the log if the replica is not encrypted as the rest of the store is asked to be."""
    if isinstance(target, S3) and target.untold is not None:
        hint = "set the default encryption of the bucket, or name a key: aws:kms:KEY"
        log.warning(
            "Litestream cannot be told POOLD_STORE_ENCRYPTION: the ledger's replica is encrypted as the bucket says",
            extra={"encryption": target.untold, "hint": hint},
        )


def replica_of(store: Path | S3Config, host: str, epoch: int) -> Target:
    """The replica of the ledger that `host` has had in `epoch`."""
    path = f"ledger/{host}/{epoch}"
    if isinstance(store, Path):
        return Folder(store / path)
    return S3(store, f"{store.prefix}/{path}".lstrip("/"))


def target_at(text: str) -> Target:
    """A replica as `str` of it told where it is: s3://BUCKET/PATH, or a folder."""
    scheme, found, rest = text.partition("://")
    if not found:
        return Folder(Path(text).absolute())
    bucket, _, path = rest.partition("/")
    if scheme != "s3" or not bucket or not path.strip("/"):
        raise ReplicaError("restoring", text, hint="it must be a folder or s3://BUCKET/PREFIX/ledger/HOST/EPOCH")
    return S3(S3Config(bucket), path.strip("/"))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What Litestream gets of ours. With `AWS_CA_BUNDLE` it refuses every call; the same file under the name that its
    own libraries read does what was meant.
    """
    passed = {name: value for name, value in environ.items() if name in PASSED_ON or name.startswith("AWS_")}
    bundle = passed.pop("AWS_CA_BUNDLE", None)
    return {"SSL_CERT_FILE": bundle, **passed} if bundle else passed
