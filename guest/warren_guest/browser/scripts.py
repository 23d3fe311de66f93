"""What is asked of pages, in their language, and reading what they answer."""

import json
from typing import Any

from warren_guest.errors import RefusedError

NO_SELECTOR = "no selector"
_EXCEPTION_CHARS = 1000
# Characters that are asked for: cut to bytes here, as a page's language counts otherwise.
_TEXT_CHARS = 65_536

FACTS = f"""function() {{
  const root = document.documentElement;
  return {{
    title: document.title.slice(0, 1000),
    url: location.href.slice(0, 8192),
    text: document.body ? document.body.innerText.slice(0, {_TEXT_CHARS}) : "",
    height: root ? root.scrollHeight : 0,
  }};
}}"""

_FOUND = f"""
  let element = null;
  try {{ element = document.querySelector(selector); }} catch {{ return "{NO_SELECTOR}"; }}
  if (!element) return null;
  element.scrollIntoView({{block: "center", inline: "center", behavior: "instant"}});
"""

# The middle of what is shown of an element; false if nothing is.
POINT = f"""function(selector) {{ {_FOUND}
  const box = element.getBoundingClientRect();
  if (!box.width || !box.height) return false;
  return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
}}"""

# Whether an element takes what is typed; what it holds is selected, so that it is replaced.
FOCUS = f"""function(selector) {{ {_FOUND}
  element.focus();
  if (document.activeElement !== element) return false;
  if (typeof element.select === "function") element.select();
  else if (element.isContentEditable) getSelection().selectAllChildren(element);
  else return false;
  return !element.disabled && !element.readOnly;
}}"""


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of `text` in UTF-8; half a surrogate pair, which a page may well have, becomes a `?`."""
    encoded = text.encode("utf-8", "replace")
    return encoded[:limit].decode("utf-8", "ignore")


def exception_text(details: dict[str, Any]) -> str:
    """What a script threw, in one text."""
    thrown = details.get("exception")
    told = thrown.get("description") or thrown.get("value") if isinstance(thrown, dict) else None
    return cut(str(told or details.get("text", "")), _EXCEPTION_CHARS)


def value_of(result: object, limit: int) -> object:
    """A script's value. NaN and the like are told as text. Raises `page_failed` if it is larger than `limit` bytes."""
    if not isinstance(result, dict):
        return None
    value = result.get("value", result.get("unserializableValue"))
    if len(json.dumps(value)) > limit:
        raise RefusedError("page_failed", f"the script's value is larger than {limit} bytes of JSON")
    return value
