"""Kill a command that rewrites a checkpoint, and check that it leaves no partial result."""

import signal

from processes import end, start_python, tree, wait_until


def kill_while_it_writes(folder, out, command, *more, expected=()):
    """Start `tiejax COMMAND FOLDER OUT`, kill it while it writes, and check that FOLDER is unchanged and OUT does not exist.

    It is killed as soon as temporary output appears next to OUT. `expected` names other files that it creates there.
    """
    before = tree(folder)
    process = start_python("-c", "from tiejax.lab.command import main; main()", command, folder, out, *more)
    known = {folder.name, out.name, *expected}
    reached = wait_until(lambda: [path for path in out.parent.iterdir() if path.name not in known], process)
    process.kill()
    assert reached, end(process)
    assert end(process).status == -signal.SIGKILL
    assert tree(folder) == before
    assert not out.exists()
