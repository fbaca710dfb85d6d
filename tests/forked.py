"""Processes of tests, forked from one that has imported jax and the studies: importing takes longer than what most of them do.

A test has a `Forked` in the place of a `subprocess.Popen`: a real process, to be killed and waited for. This file, run as a
script, is the process that is forked, one per worker of pytest: it reads requests from the socket on its standard input.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import warnings
from typing import Any

STUDIES = ("causal_untying", "compare", "diagnosis", "embedding_coupling", "exor", "layer_tying", "text_mlm", "untying")
PR_SET_CHILD_SUBREAPER = 36
DEVICES = "JAX_NUM_CPU_DEVICES"
CHANGED_LATER = {"PYTEST_CURRENT_TEST", DEVICES}  # variables that a forked process can still heed


class Forked(subprocess.Popen):
    """A process that runs a script as `subprocess.Popen([sys.executable, script, ...])` would, on Linux; see `can_fork`."""

    def _execute_child(self, args: list[str], *how: Any) -> None:
        """Have the process that has imported everything fork; `how` is as in subprocess, whose private method this is."""
        _, _, _, _, cwd, env, _, _, _, stdin, _, _, stdout, _, stderr, *_ = how
        request = json.dumps({"argv": args[1:], "cwd": str(cwd or os.getcwd()), "env": env}).encode()
        server = _server()
        socket.send_fds(server, [len(request).to_bytes(4, "big")], [stdin, stdout, stderr])
        server.sendall(request)
        self.pid = int.from_bytes(_read(server, 4), "big")
        self._child_created = True
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)


def can_fork(env: dict[str, str]) -> bool:
    """Return whether a forked process can have this environment: that of the first, except for a few variables."""
    changed = {name for name, _ in env.items() ^ _first_environment().items()}
    return sys.platform == "linux" and changed <= CHANGED_LATER


@functools.cache
def _first_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in CHANGED_LATER}


@functools.cache
def _server() -> socket.socket:
    """Start the process that is forked. Processes whose parents have ended become children of this one."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair()
    server = subprocess.Popen([sys.executable, __file__], stdin=theirs, env=_first_environment())
    theirs.close()

    def close() -> None:
        ours.close()
        server.wait()

    atexit.register(close)
    return ours


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        some = connection.recv(size - len(found))
        if not some:
            raise EOFError("the process that forks has ended")
        found += some
    return found


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for every request; return the request in the new process, None in this one once there are no more."""
    while True:
        first, descriptors, *_ = socket.recv_fds(connection, 4, 3)
        if not first:
            return None
        request = json.loads(_read(connection, int.from_bytes(first, "big")))
        number, to_number = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:  # this process ends at once, so that the test's process adopts its child
                os.write(to_number, child.to_bytes(4, "big"))
                os._exit(0)
            for place, descriptor in enumerate(descriptors):
                os.dup2(descriptor, place)
        else:
            os.waitpid(between, 0)
            connection.sendall(os.read(number, 4))
        for descriptor in (number, to_number, *descriptors):
            os.close(descriptor)
        if not between:
            connection.close()
            return request


def become(request: dict[str, Any]) -> None:
    """Run what a request names, as if this process had been started with its arguments."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115 (open until the process ends)
        if name == "stderr":
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(request["env"])
    if devices := os.environ.get(DEVICES):
        importlib.import_module("jax").config.update(DEVICES.lower(), int(devices))
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    connection = socket.socket(fileno=os.dup(0))
    for study in STUDIES:
        importlib.import_module(f"tiejax.lab.studies.{study}.study")
    importlib.import_module("tiejax.lab.reporting.figures")
    gc.collect()
    gc.freeze()
    with warnings.catch_warnings(action="ignore"):  # of jax, which has not started any threads yet
        request = serve(connection)
    if request:
        become(request)


if __name__ == "__main__":
    main()
