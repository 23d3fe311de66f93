"""Where the store and the registry are, as the settings of poold and pooldctl say: folders, or places in S3."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from contract.settings import ADDRESSINGS, BadSetting, Settings

ENCRYPTION = re.compile(r"|AES256|aws:kms(?::[A-Za-z0-9:/_-]{1,2048})?")
REGISTRY = "registry"  # in a store, unless it is told to be elsewhere


@dataclass(frozen=True)
class S3Config:
    """A store in S3. Who we are there, and where it is, AWS's own settings say."""

    bucket: str
    prefix: str = ""  # of one cluster
    encryption: str = ""  # by the server: AES256, aws:kms or aws:kms:KEY; empty: as the bucket's own settings say
    addressing: str = "auto"
    requests: int = 16  # at once
    timeout_s: int = 20  # of one attempt
    region: str | None = None  # None: as AWS's own settings say

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def encryption_parameters(self) -> dict[str, str]:
        if self.encryption.startswith("aws:kms:"):
            return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.encryption.removeprefix("aws:kms:")}
        return {"ServerSideEncryption": self.encryption} if self.encryption else {}


class Places(Settings):
    def store(self, name: str) -> Path | S3Config | None:
        return self._place(name, self._environ.get(name, ""), parts=3)

    def registry(self, name: str, store: Path | S3Config | None) -> Path | S3Config | None:
        """Where it was told to be; unless it was, in the store; told to be nowhere, nowhere."""
        text = self._environ.get(name)
        if text is not None:
            return self.registry_at(name, text)
        if isinstance(store, S3Config):
            return replace(store, prefix=f"{store.prefix}/{REGISTRY}".lstrip("/"))
        return None if store is None else store / REGISTRY

    def registry_at(self, name: str, text: str) -> Path | S3Config | None:
        """In S3 it has a prefix: whoever reads it looks at all that is there."""
        found = self._place(name, text, parts=4)
        if isinstance(found, S3Config) and not found.prefix:
            raise BadSetting(f"{name} must be a folder or s3://BUCKET/PREFIX, got {text!r}")
        return found

    def _place(self, name: str, text: str, *, parts: int) -> Path | S3Config | None:
        found = self.s3_place(name, text, parts=parts)
        bucket, prefix = found or ("", "")
        s3 = S3Config(
            bucket=bucket,
            prefix=prefix,
            encryption=self.matching(
                "POOLD_STORE_ENCRYPTION", ENCRYPTION, "", told="be AES256, aws:kms or aws:kms:KEY"
            ),
            addressing=self.one_of("POOLD_STORE_ADDRESSING", ADDRESSINGS, "auto"),
            requests=self.integer("POOLD_STORE_REQUESTS", 16, 1, 256),
            timeout_s=self.integer("POOLD_STORE_TIMEOUT_SEC", 20, 1, 600),
            region=self._environ.get("AWS_REGION") or None,  # botocore reads AWS_DEFAULT_REGION only
        )
        if found is not None:
            return s3
        return Path(text).absolute() if text else None
