"""How signals end a command that runs for long."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from headgate.streaming.signals import ONE_STOP, stop_signals
from tests.cli.calls import started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_at_once_are_one_wish_which_is_answered_and_a_later_one_hurries(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with stop_signals("waiting for the batch.") as stop:
        assert not stop.asked()
        for _ in range(3):  # `timeout` sends two
            os.kill(os.getpid(), number)
        assert (stop.asked(), stop.interrupted) == (True, number == signal.SIGINT)
        assert capfd.readouterr().err == "Stopping: waiting for the batch.\n"
        time.sleep(ONE_STOP + 0.1)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.interrupted == (number == signal.SIGINT), "the first one says how it ends"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ingest_that_finds_no_broker_stops_at_once_and_says_why_it_may(
    number: signal.Signals, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        command = ["ingest", "--servers", servers, "--topic", "t", "--table", str(tmp_path / "t"), "--create", "id int"]
        process = started(*command)
        silent.settimeout(60)
        held, _ = silent.accept()
        asked = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        held.close()
    assert said.startswith("Stopping: no batch has started, so nothing is lost.")
    assert "Traceback" not in said
    assert process.returncode == (130 if number == signal.SIGINT else 0)
    assert time.monotonic() - asked < 30, "it would have waited for 60 seconds"
    assert not (tmp_path / "t").exists()
