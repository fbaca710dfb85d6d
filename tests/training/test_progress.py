"""The progress bar and the callback of plain training."""

import io

from tiejax.training.loop import bar_of


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, asked):
    monkeypatch.setattr("sys.stderr", stream)
    with bar_of(20, asked) as show:
        for step in range(0, 21, 5):
            show(step)
    return stream.getvalue()


def test_a_bar_on_a_terminal_only(monkeypatch):
    assert "20/20" in shown(monkeypatch, Terminal(), None)
    assert shown(monkeypatch, io.StringIO(), None) == shown(monkeypatch, Terminal(), False) == ""
