"""Stands before transformers' server, and answers a request that cannot be answered with the reason and status 4xx."""

import json
from collections.abc import Awaitable, Callable

from starlette.responses import JSONResponse

from ..request_body import MAX_BODY, Message, Receive, read_body, replayed
from ..saved_files import reason
from .request_checks import CHECKS, BadRequest, RequestLimits, parse_body

Send = Callable[[Message], Awaitable[None]]

_AUDIO = "/v1/audio/transcriptions"
# What transformers' handlers raise about fields that they find to be wrong while they read them.
_ABOUT_THE_REQUEST = (KeyError, IndexError, TypeError, ValueError, AttributeError)


class RequestGuard:
    """ASGI middleware that checks the bodies of requests.

    Args:
        app: What answers the requests that are right.
        limits: How much they may ask for.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], limits: RequestLimits):
        self.app, self.limits = app, limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if scope["path"] == _AUDIO and self.limits.is_for_one_model:
            await self._refuse(scope, receive, send, 404, "the model of this server reads text alone")
            return
        check = CHECKS.get(scope["path"])
        if check is not None:
            body = await read_body(receive)
            if body is None:
                await self._refuse(scope, receive, send, 413, f"the body is larger than {MAX_BODY:,} bytes")
                return
            try:
                fields = parse_body(body)
                check(fields, self.limits)
            except BadRequest as error:
                await self._refuse(scope, receive, send, 400, str(error))
                return
            receive = replayed(json.dumps(fields).encode(), receive)
        await self._answer(scope, receive, send)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except _ABOUT_THE_REQUEST as error:
            if started:
                raise
            await self._refuse(scope, receive, send, 400, f"the request cannot be answered: {reason(error)}")

    async def _refuse(self, scope: Message, receive: Receive, send: Send, status: int, detail: str) -> None:
        await JSONResponse({"detail": detail}, status)(scope, receive, send)
