"""`warren preview`: an address that shows a port of a sandbox."""

import webbrowser

from warren.cli import errors
from warren.cli.context import Context
from warren.cli.ids import find
from warren.cli.program import say


def preview(context: Context) -> int:
    asked, out = context.asked, context.out
    sandbox = find(context.warren, asked.sandbox)
    if asked.private:
        sandbox.unpublish(asked.port)
        if out.as_json:
            out.json({"sandbox": sandbox.id, "port": asked.port, "public": False})
        else:
            out.line(f"{sandbox.id} port {asked.port} is private")
        return errors.DONE
    url = sandbox.preview_url(asked.port, public=asked.public, expires_sec=asked.expires_sec)
    if out.as_json:
        out.json({"url": url, "sandbox": sandbox.id, "port": asked.port, "public": asked.public})
    else:
        out.line(url)
    if asked.open and not webbrowser.open(url):
        say("no browser was found: open the address yourself")
    return errors.DONE
