"""Stands before Gradio's server, and refuses what its page needs nothing of: to keep files, and to fetch them."""

import json
import re
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..request_body import MAX_BODY, read_body, replayed

# What writes to the disk of the server, or gives away files, or fetches them elsewhere. The path has been decoded, so
# that a percent-encoded one is found as well; it may begin with the path below which a proxy shows the page.
_REFUSED = re.compile(r"/gradio_api/(upload|deep_link|process_recording|component_server|file[=/]|proxy=)")
_NO_FILES = "this page takes and gives no files"


class Guard:
    """ASGI middleware that answers 403 to requests for Gradio's files, and 413 to those of more than `MAX_BODY` bytes.

    Args:
        app: What answers the other ones.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _REFUSED.search(scope["path"]):
            await _refuse(scope, receive, send, 403, _NO_FILES)
            return
        if scope["method"] == "POST":
            body = await read_body(receive)
            if body is None:
                await _refuse(scope, receive, send, 413, f"this page takes no more than {MAX_BODY:,} bytes at once")
                return
            if _names_a_file(body):
                await _refuse(scope, receive, send, 403, _NO_FILES)
                return
            receive = replayed(body, receive)
        await self.app(scope, receive, send)


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, why: str) -> None:
    await PlainTextResponse(why, status)(scope, receive, send)


def _names_a_file(body: bytes) -> bool:
    """Whether there is an object that Gradio takes for a file, in the place of a text: it would fetch its address."""
    types: list[Any] = []
    try:
        json.loads(body, object_hook=lambda fields: types.append(fields.get("_type")))
    except (ValueError, RecursionError):  # the server cannot read it either
        return False
    return any(types)
