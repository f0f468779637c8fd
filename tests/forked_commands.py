"""`roformer-lite` and `python -c` without their six seconds of imports: a process that has them forks for each.

What it starts differs from a process of its own only in what is imported; tests of processes start their own.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Asks for a command with its own arguments, directory, environment and streams, and ends as the command does.
ASK = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect({address!r})
    socket.send_fds(asking, [b"."], [0, 1, 2])
    asking.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    sys.exit(int(asking.recv(9) or 1))
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """A program in `folder` that takes the arguments of `roformer-lite`, or `-c CODE`."""
    address, program = str(folder / "socket"), folder / "roformer-lite"
    program.write_text(ASK.format(python=sys.executable, address=address), "utf-8")
    program.chmod(0o755)
    with subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE) as server:
        assert server.stdout.readline(), "the imports failed"
        yield program
        server.terminate()


def answer(asking: socket.socket) -> int:
    """Run what is asked for in this process; its exit status."""
    from roformer_lite.cli import main

    _, streams, _, _ = socket.recv_fds(asking, 1, 3)
    arguments, folder, environment = json.loads(asking.makefile().readline())
    for own, given in enumerate(streams):
        os.dup2(given, own)
        os.close(given)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["roformer-lite", *arguments]
    try:
        if arguments[0] != "-c":
            return main(arguments)
        sys.path.insert(0, "")
        exec(arguments[1], {"__name__": "__main__"})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve(address: str) -> None:
    """Import once, print a line, and fork for each that asks."""
    import roformer_lite.commands.evaluate
    import roformer_lite.commands.predict
    import roformer_lite.commands.train
    import roformer_lite.train.train  # noqa: F401

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for these
    print("ready", flush=True)
    while True:
        asking, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            status = answer(asking)
            sys.stdout.flush()
            sys.stderr.flush()
            asking.sendall(str(status).encode())
            os._exit(0)
        asking.close()


if __name__ == "__main__":
    serve(sys.argv[1])
