"""The body of an HTTP request, read before the application that answers it (ASGI specification, HTTP messages)."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

MAX_BODY = 2**20  # bytes; more text than anyone types or a small model can take at once


async def read_body(receive: Receive) -> bytes | None:
    """The whole body; None when it is larger than `MAX_BODY`, of which nothing more is kept."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` of a request with the body `body`; what comes after it is real, such as the end of the connection."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
