"""No connection but to this machine: what tries another one fails, and is written down."""

import socket
from collections.abc import Callable
from typing import Any


def refuse_other_hosts(record: Callable[[str], Any]) -> None:
    """Let sockets of this process reach this machine alone; `record` gets the names of other
    hosts."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def check(host: Any) -> None:
        name = host.decode() if isinstance(host, bytes) else host or ""
        if name not in ("", "localhost", "0.0.0.0", "::1") and not name.startswith("127."):
            record(name)
            raise OSError(f"a test may not reach {name}")

    def checked_connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            check(address[0])
        return connect(self, address)

    def checked_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        check(host)
        return look_up(host, *args, **kwargs)

    socket.socket.connect, socket.getaddrinfo = checked_connect, checked_look_up
