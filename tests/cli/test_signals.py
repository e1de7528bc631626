"""How signals end a command that runs for long."""

from __future__ import annotations

import os
import signal
import time

import pytest

from headgate.streaming.signals import ONE_STOP, stop_signals


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
