"""Kill a command that rewrites a checkpoint, and check that it leaves no partial result."""

import signal

from processes import end, start_python, tree, wait_until


def kill_while_it_writes(folder, out, *words, expected=()):
    """Start `tiejax WORDS`, kill it while it writes, and check that FOLDER is unchanged and OUT does not exist.

    words: the command with its arguments, or the command alone, whose arguments are FOLDER and OUT. The
    process is killed as soon as temporary output appears next to OUT. `expected` names other files that it creates there.
    """
    before = tree(folder)
    process = start_python(
        "-c", "from tiejax.lab.command import main; main()", *(words if out in words else [words[0], folder, out, *words[1:]])
    )
    known = {folder.name, out.name, *expected}
    reached = wait_until(lambda: [path for path in out.parent.iterdir() if path.name not in known], process)
    process.kill()
    assert reached, end(process)
    assert end(process).status == -signal.SIGKILL
    assert tree(folder) == before
    assert not out.exists()
