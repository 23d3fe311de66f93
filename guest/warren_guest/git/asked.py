"""What git is asked for: checked values. A refusal names the field; where that may hold a secret, never the value."""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from warren_guest.fields import Fields, bad_field

_OPERATION = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# What git's own check refuses in a name, and what a shell or a refspec would read as something else.
_ODD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/$|\.$|\.lock(?:/|$)|(?:^|/)\.|^@$|^[-/+]")
_URL_LIMIT, _REF_LIMIT, _NAME_LIMIT, _PASSWORD_LIMIT = 2048, 255, 200, 4096
_DAY_MS = 24 * 3600 * 1000
_PROTECTED_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Author:
    name: str
    email: str


@dataclass(frozen=True, slots=True)
class Credentials:
    """Never printed: neither `repr` nor an f-string shows what is inside."""

    username: str
    password: str

    def __repr__(self) -> str:
        return "Credentials(…)"

    def for_helper(self) -> bytes:
        """As git reads them from a credential helper."""
        return f"username={self.username}\npassword={self.password}\n".encode()


def is_hash(text: str) -> bool:
    return _HASH.fullmatch(text) is not None


def operation_of(fields: Fields) -> str:
    text = fields.required_text("operation")
    if _OPERATION.fullmatch(text) is None:
        raise bad_field("operation", f"{text[:60]!a} is not 1 to 128 letters, digits or ._:-")
    return text


def url_of(fields: Fields) -> str:
    """An http(s) address without a user in it: git quotes addresses in its messages, and others read these."""
    text = fields.required_text("url")
    if len(text) > _URL_LIMIT or not text.isascii() or re.search(r"[\x00-\x20\x7f\\]", text):
        raise bad_field("url", f"is longer than {_URL_LIMIT} characters or has some that no address has")
    parts = _split(text)
    if "@" in parts.netloc:
        raise bad_field("url", "has a user in it; give it as `credentials`")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise bad_field("url", f"{text[:60]!a} is not an address with http or https")
    if parts.query or parts.fragment:
        raise bad_field("url", "has a query or a fragment, which no repository has")
    return text


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as exc:
        raise bad_field("url", f"is not an address: {exc}") from None
    return parts


def origin_of(url: str) -> str:
    """The part of an address that credentials belong to."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_ref_name(text: str) -> bool:
    return 0 < len(text) <= _REF_LIMIT and _ODD_IN_REF.search(text) is None


def ref_of(fields: Fields, name: str) -> str | None:
    """A branch, a tag or a commit, or None if absent or empty."""
    text = fields.text(name)
    if not text:
        return None
    if not is_ref_name(text):
        raise bad_field(name, f"{text[:60]!a} is not the name of a branch, tag or commit")
    return text


def branch_of(fields: Fields) -> str | None:
    text = ref_of(fields, "branch")
    if text is not None and (text == "HEAD" or text.startswith("refs/")):
        raise bad_field("branch", f"{text[:60]!a} is not the name of a branch")
    return text


def hash_of(fields: Fields, name: str) -> str | None:
    return fields.matching(name, _HASH, "the hash of a commit")


def credentials_of(fields: Fields) -> Credentials | None:
    nested = fields.nested("credentials")
    if nested is None:
        return None
    return Credentials(_secret(nested, "username") or "git", _secret(nested, "password"))


def _secret(fields: Fields, name: str) -> str:
    value = fields.raw(name)
    value = "" if value is None else value
    is_fit = isinstance(value, str) and len(value) <= _PASSWORD_LIMIT and not re.search(r"[\0\r\n]", value)
    if not isinstance(value, str) or not is_fit or not _is_unicode(value):
        raise bad_field(f"credentials.{name}", f"is not a text of one line and at most {_PASSWORD_LIMIT} characters")
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def author_of(fields: Fields) -> Author | None:
    nested = fields.nested("author")
    if nested is None:
        return None
    name, email = nested.required_text("name").strip(), nested.required_text("email").strip()
    for field, text in (("name", name), ("email", email)):
        # Git drops such characters at the ends in silence, and an author that it changed is not the policy's.
        if not text or len(text) > _NAME_LIMIT or re.search(r"[\x00-\x1f\x7f<>]|^[.,:;\"'\\]|[.,:;\"'\\]$", text):
            raise bad_field(f"author.{field}", f"{text[:60]!a} cannot be in a commit as it is")
    return Author(name, email)


def protected_of(fields: Fields) -> tuple[str, ...]:
    patterns = fields.texts("protected")
    if len(patterns) > _PROTECTED_LIMIT or any(not 0 < len(each) <= _REF_LIMIT for each in patterns):
        raise bad_field("protected", f"has more than {_PROTECTED_LIMIT} patterns, or an empty or long one")
    return tuple(patterns)


def limit_s_of(fields: Fields, default_s: float) -> float:
    asked = fields.number("limit_ms", 1, _DAY_MS)
    return default_s if asked is None else asked / 1000
