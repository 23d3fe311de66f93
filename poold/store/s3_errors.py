"""What goes wrong between us and S3, as the errors of the store: the one place that knows botocore's."""

from typing import Any

from contract.errors import WarrenError
from poold.store.errors import Full, NoObject, Refused, Unreachable

_AGAIN = {"RequestTimeout", "RequestTimeoutException", "SlowDown", "Throttling", "ThrottlingException",
          "RequestLimitExceeded", "TooManyRequests", "InternalError", "ServiceUnavailable", "OperationAborted",
          "ConditionalRequestConflict", "PriorRequestNotComplete", "IncompleteBody", "BadDigest"}  # fmt: skip
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "QuotaExceededException"}
_HINTS = {
    "NoSuchBucket": "make the bucket, or correct POOLD_STORE",
    "InvalidAccessKeyId": "correct the credentials",
    "SignatureDoesNotMatch": "correct the credentials",
    "ExpiredToken": "renew the credentials",
    "RequestTimeTooSkewed": "set the clock of this host",
    "AccessDenied": "allow it in the bucket's policy or the role's",
    "403": "correct the credentials, or allow it in the bucket's policy or the role's",
    "PermanentRedirect": "set AWS_REGION to the bucket's",
}


class Lost(Unreachable):
    """No answer, or none that says whether it was done. Trying again may help."""


class Unmet(Exception):
    """The object is not as the request's condition says. It was not done."""


class NoUpload(Exception):
    """There is no such upload: it was ended before."""


class NoRange(Exception):
    """The object ends before what was asked for."""


def translated(error: Exception, doing: str, key: str) -> Exception:
    """Our error for one that came out of a request."""
    import aiohttp
    from botocore import exceptions as boto
    from botocore.parsers import ResponseParserError

    if isinstance(error, WarrenError):
        return error
    told = f"{doing} {key!r} in the store"
    if isinstance(error, boto.ClientError):
        return _answered(error.response, told, key)
    on_the_way = (
        boto.HTTPClientError,
        ResponseParserError,
        boto.IncompleteReadError,
        aiohttp.ClientError,
        OSError,
    )
    if isinstance(error, (*on_the_way, boto.CredentialRetrievalError, boto.MetadataRetrievalError)):
        return Lost(f"{told}: {'no answer in time' if isinstance(error, TimeoutError) else _short(error)}")
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role for this host"
        return Refused(f"{told}: there are no credentials; {hint}")
    if isinstance(error, boto.BotoCoreError | ValueError):
        return Refused(f"{told}: {_short(error)}")
    return error


def _answered(response: Any, told: str, key: str) -> Exception:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(response.get("Error", {}).get("Code", status))
    named = {"NoSuchKey": NoObject(key), "NoSuchUpload": NoUpload(), "InvalidRange": NoRange(), "416": NoRange()}
    if code in named:
        return named[code]
    if code in ("PreconditionFailed", "412") or status == 412:
        return Unmet()
    if code in _FULL or status == 507:
        return Full(f"{told}: it is full ({code})", retry_after_s=30)
    if code in _AGAIN or status >= 500 or status == 429:
        return Lost(f"{told}: it answered {status} {code}")
    if code in ("404", "NotFound"):
        return NoObject(key)
    hint = f"; {_HINTS[code]}" if code in _HINTS else ""
    return Refused(f"{told}: it answered {status} {code}{hint}")


def _short(error: Exception) -> str:
    return str(error)[:300] or type(error).__name__
