"""Stands before Gradio's server, and refuses what its page needs nothing of: to keep files, and to fetch them."""

import json
import re
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What writes to the disk of the server, or gives away files, or fetches them elsewhere. The path has been decoded, so
# that a percent-encoded one is found as well; it may begin with the path below which a proxy shows the page.
_REFUSED = re.compile(r"/gradio_api/(upload|deep_link|process_recording|component_server|file[=/]|proxy=)")


class Guard:
    """ASGI middleware that answers 403 to requests for Gradio's files.

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
            await _refuse(scope, receive, send)
            return
        if scope["method"] == "POST":
            messages = await _all_of(receive)
            if _names_a_file(b"".join(message.get("body", b"") for message in messages)):
                await _refuse(scope, receive, send)
                return
            receive = _replayed(messages, receive)
        await self.app(scope, receive, send)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("this page takes and gives no files", 403)(scope, receive, send)


async def _all_of(receive: Receive) -> list[Message]:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    """What gives the messages again, and then those that follow."""
    waiting = iter(messages)

    async def replay() -> Message:
        return next(waiting, None) or await receive()

    return replay


def _names_a_file(body: bytes) -> bool:
    """Whether there is an object that Gradio takes for a file, in the place of a text: it would fetch its address."""
    types: list[Any] = []
    try:
        json.loads(body, object_hook=lambda fields: types.append(fields.get("_type")))
    except (ValueError, RecursionError):  # the server cannot read it either
        return False
    return any(types)
