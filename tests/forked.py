"""Processes of tests, forked from one that has imported jax and the studies, which takes a quarter of the time of a small run.

A `Forked` takes the place of a `subprocess.Popen`: a real process, to be killed and waited for. It differs from one that
`start_python` starts in two ways: modules are imported already, so that a missing import does not show, and all have one hash
seed, so that a result that depends on the order of a set does not show. Tests of faults and of wheels start new processes.

This file, run as a script, is the process that is forked, one per worker of pytest: it reads requests from the socket on its
standard input.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import warnings
from typing import Any

STUDIES = ("causal_untying", "compare", "diagnosis", "embedding_coupling", "exor", "layer_tying", "text_mlm", "untying")
PR_SET_CHILD_SUBREAPER = 36
DEVICES = "JAX_NUM_CPU_DEVICES"
CHANGED_LATER = {"PYTEST_CURRENT_TEST", "MPLBACKEND", DEVICES}  # variables that a forked process can still heed


class Forked(subprocess.Popen):
    """A process that runs a script as `subprocess.Popen([sys.executable, script, ...])` would, on Linux; see `can_fork`."""

    def _execute_child(self, args: list[str], *how: Any) -> None:
        """Have the process that has imported everything fork; `how` is as in subprocess, whose private method this is."""
        _, _, _, _, cwd, env, _, _, _, stdin, _, _, stdout, _, stderr, *_ = how
        request = json.dumps({"argv": args[1:], "cwd": str(cwd or os.getcwd()), "env": env}).encode()
        server = _server()
        _adopt(True)  # a process whose parent has ended
        socket.send_fds(server, [len(request).to_bytes(4, "big")], [stdin, stdout, stderr])
        server.sendall(request)
        self.pid = int.from_bytes(_read(server, 4), "big")
        _adopt(False)  # as other tests expect
        if not self.pid:
            raise OSError("no process could be forked")
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises ChildProcessError if it is no child
        self._child_created = True
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)


def can_fork(env: dict[str, str]) -> bool:
    """Return whether a forked process can have this environment: that of the first, except for a few variables."""
    changed = {name for name, _ in env.items() ^ first_environment().items()}
    return sys.platform == "linux" and changed <= CHANGED_LATER and env.get(DEVICES, "1").isdigit()


@functools.cache
def first_environment() -> dict[str, str]:
    """Return the environment at the first call, which `conftest.py` makes before any test: tests change theirs."""
    return {name: value for name, value in os.environ.items() if name not in CHANGED_LATER}


def _adopt(whether: bool) -> None:
    """Make processes whose parents have ended children of this one, or of init."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@functools.cache
def _server() -> socket.socket:
    """Start the process that is forked; return the socket for requests."""
    ours, theirs = socket.socketpair()
    server = subprocess.Popen([sys.executable, __file__], stdin=theirs, env=first_environment())
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
        if not os.fork():
            _fork_and_end(to_number)
            for place, descriptor in enumerate(descriptors):
                os.dup2(descriptor, place)
            for descriptor in (number, to_number, *descriptors):
                os.close(descriptor)
            connection.close()
            return request
        os.wait()
        os.close(to_number)
        connection.sendall(os.read(number, 4) or bytes(4))  # 0 if the second fork failed
        for descriptor in (number, *descriptors):
            os.close(descriptor)


def _fork_and_end(to_number: int) -> None:
    """Go on in a child, whose number is written, and end this process, so that the process of the test adopts the child."""
    try:
        child = os.fork()
    except OSError:
        os._exit(1)
    if child:
        os.write(to_number, child.to_bytes(4, "big"))
        os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Run what a request names, as if this process had been started with its arguments."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, name), "w" if number else "r"
        stream = open(number, mode, 1 if number == 2 else -1, old.encoding, old.errors, closefd=False)  # noqa: SIM115
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
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends pytest, which ends this process
    with warnings.catch_warnings(action="ignore"):  # of threads, of which jax has not started any
        request = serve(connection)
    signal.signal(signal.SIGINT, interrupt)
    if request:
        become(request)


if __name__ == "__main__":
    main()
