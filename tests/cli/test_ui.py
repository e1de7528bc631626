from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from headgate.console.server import TOKEN_VARIABLE
from tests.cli.calls import Headgate, OnTerminal, started
from tests.support.consoles import orders


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ui_serves_until_it_is_told_to_end(tmp_path: Path, number: signal.Signals) -> None:
    orders(tmp_path / "orders", batches=1, rows=3, partitions=1)
    process = started("ui", str(tmp_path), "--port", "0", "--output", "json")
    try:
        assert process.stdout is not None
        url = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["url"]
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b"headgate" in answer.read()
    finally:
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr


def test_elsewhere_a_token_is_asked_for_and_shown_on_a_terminal_alone(
    headgate: Headgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    refused = headgate("ui", str(tmp_path), "--host", "0.0.0.0", "--port", "0")
    assert refused.exit_code == 2
    assert TOKEN_VARIABLE in refused.stderr
    terminal = OnTerminal("ui", str(tmp_path), "--host", "0.0.0.0", "--port", "0")
    try:
        terminal.until("?token=")
    finally:
        assert terminal.end() == 0
    monkeypatch.setenv(TOKEN_VARIABLE, "x" * 32)
    process = started("ui", str(tmp_path), "--host", "0.0.0.0", "--port", "0")
    assert process.stderr is not None
    line = process.stderr.readline()
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert "The console is at http://127.0.0.1:" in line
    assert "token" not in line


def test_a_port_that_is_taken_is_told_at_once(headgate: Headgate, tmp_path: Path) -> None:
    first = started("ui", str(tmp_path), "--port", "0")
    assert first.stderr is not None
    port = first.stderr.readline().rstrip("/\n").rpartition(":")[2]
    taken = headgate("ui", str(tmp_path), "--port", port)
    first.terminate()
    first.communicate(timeout=60)
    assert taken.exit_code == 2
    assert "cannot listen" in taken.stderr
