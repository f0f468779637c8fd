"""No connection but to this machine: what tries another one fails, and is written down."""

import ipaddress
import os
import socket
from pathlib import Path
from typing import Any


def refuse_other_hosts(record: list[str] | None = None) -> None:
    """Let sockets of this process reach this machine alone.

    Args:
        record: Where the names of other hosts are added. Default: lines of the file that `OTHER_HOSTS` names.
    """
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def note(host: Any) -> OSError:
        if record is not None:
            record.append(str(host))
        else:
            with Path(os.environ["OTHER_HOSTS"]).open("a") as stream:
                stream.write(f"{host}\n")
        return OSError(f"a test may not reach {host}")

    def checked_connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not is_here(address[0]):
            raise note(address[0])
        return connect(self, address)

    def checked_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_here(host):
            raise note(host)
        return look_up(host, *args, **kwargs)

    socket.socket.connect, socket.getaddrinfo = checked_connect, checked_look_up


def is_here(host: Any) -> bool:
    """Whether a host is this machine, by its name or its address."""
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", "0.0.0.0"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
