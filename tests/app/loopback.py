"""Connections are possible only to this machine: an attempt to reach another host fails, and is
recorded."""

import socket
from collections.abc import Callable
from typing import Any


def refuse_other_hosts(record: Callable[[str], Any]) -> None:
    """Let sockets of this process reach only this machine. `record` gets the names of other
    hosts."""
    connect = socket.socket.connect
    look_up = socket.getaddrinfo

    def check(host: Any) -> None:
        name = host or ""
        if isinstance(name, bytes):
            name = name.decode()
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

    socket.socket.connect = checked_connect
    socket.getaddrinfo = checked_look_up
