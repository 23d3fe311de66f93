"""The S3 server of `make up STORE=s3` and of the tests: SeaweedFS, on loopback only, with data in one folder."""

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from poold import files

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
            "TMPDIR": str(self.folder.parent),  # its logs
        }

    def clear(self) -> None:
        """Remove what it leaves when it has ended: it knows no other place for its sockets, and gRPC is 10,000 up."""
        for port in (number + more for number in self.ports for more in (0, 10_000, 10_001)):
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 (its place, not ours)
                path.unlink(missing_ok=True)

    def is_ready(self) -> bool:
        """It answers, and has its bucket. Blocks."""
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        client = botocore.session.Session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5, proxies={}),
        )
        try:
            client.head_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True

    def client(self) -> Mapping[str, str]:
        """For programs that use it, as every client of AWS understands it."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
        }


def kept_server(folder: Path, first_port: int) -> S3Server:
    """The server whose data and credentials are in `folder`. Both are made if they are not there."""
    (folder / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = folder / "credentials.json"
    if not kept.exists():
        made = {"access_key": f"warren{secrets.token_hex(6)}", "secret_key": secrets.token_hex(20)}
        files.put(kept, orjson.dumps(made), files.PRIVATE)
    return S3Server(folder / "data", range(first_port, first_port + len(PORTS)), **orjson.loads(kept.read_bytes()))
