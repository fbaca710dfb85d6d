"""A command that writes a checkpoint anew, killed while it does: what must be there then, and what must not."""

import signal

from processes import end, start_python, tree, wait_until


def kill_while_it_writes(folder, out, command, *more, expected=()):
    """Start `tiejax COMMAND FOLDER OUT`, kill it once something stands beside OUT: the folder is as before, OUT is not there.

    expected: names beside OUT that other parts of the command make.
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
