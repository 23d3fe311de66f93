"""The S3 server of `make up STORE=s3` and of the tests: SeaweedFS, on loopback only, with data in one folder."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BUCKET = "warren"
REGION = "us-east-1"
PORTS = ("s3.port", "master.port", "volume.port", "filer.port", "admin.port")


@dataclass(frozen=True)
class S3Server:
    """How it is started, and how clients find it."""

    folder: Path
    ports: Sequence[int]  # of S3, and then those that its parts talk to each other on
    access_key: str
    secret_key: str = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def argv(self) -> list[str]:
        """Without telemetry, pages for people, and whatever else would listen."""
        return [
            str(Path(sys.executable).with_name("weed")),
            "mini",
            f"-dir={self.folder}",
            f"-bucket={BUCKET}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-webdav=false",
            "-admin.ui=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            *(f"-{name}={port}" for name, port in zip(PORTS, self.ports, strict=True)),
        ]

    def environment(self) -> dict[str, str]:
        """Its own: the credentials that it accepts, and less memory than it would take."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "GOMEMLIMIT": "400MiB",
            "HOME": str(self.folder),
        }

    def client(self) -> Mapping[str, str]:
        """For programs that use it, as every client of AWS understands it."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
        }
