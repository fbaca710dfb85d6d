"""Reachability of hosts within a time limit."""

import socket
import time

import pytest
from corpora import closed_port, serving

from tiejax.text.network import reachable


@pytest.mark.slow
def test_reachable_within_the_time_limit(tmp_path):
    with serving(tmp_path) as host:
        assert reachable(host)
        assert reachable(f"{host}/missing")
    assert not reachable(f"http://127.0.0.1:{closed_port()}")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        assert not reachable(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - begun < 5
