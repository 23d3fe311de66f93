"""Server-side encryption of the replica: what Litestream can be told it is told, and what it cannot is said."""

from pathlib import Path

import pytest

from poold.config import S3Config
from poold.replica.target import S3, replica_of, warn_of_untold


def test_a_key_of_kms_is_told_to_litestream(caplog: pytest.LogCaptureFixture) -> None:
    target = replica_of(S3Config("bucket", encryption="aws:kms:arn:aws:kms:eu:1:key/k-1"), "a", 1)
    assert target.settings({})["sse-kms-key-id"] == "arn:aws:kms:eu:1:key/k-1"
    warn_of_untold(target)
    assert not caplog.records


@pytest.mark.parametrize("encryption", ["AES256", "aws:kms"])
def test_what_litestream_cannot_be_told_is_said_in_the_log_with_what_helps(
    encryption: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = replica_of(S3Config("bucket", encryption=encryption), "a", 1)
    assert isinstance(target, S3)
    assert not [name for name in target.settings({}) if name.startswith("sse")]
    warn_of_untold(target)
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["encryption"]) == ("WARNING", encryption)
    assert "default encryption of the bucket" in record.__dict__["hint"]


@pytest.mark.parametrize("store", [Path("/a/folder"), S3Config("bucket")])
def test_where_no_encryption_is_asked_for_nothing_is_said(
    store: Path | S3Config, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_untold(replica_of(store, "a", 1))
    assert not caplog.records
