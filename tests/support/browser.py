"""Chromium for the tests of the console: Debian's, driven by Playwright.

`python -m tests.support.browser` installs it by apt where that may be done (root, and apt is there); `make test` calls
it. Where there is none, tests that need a browser are skipped with the reason. Nothing is installed while tests run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

PLACE = Path("/usr/bin/chromium")
INSTALL_SECONDS = 300.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str | None:
    """Why there is no browser here; None: there is one."""
    if find_spec("playwright") is None:
        return "playwright is not installed"
    return None if PLACE.exists() else f"{PLACE} is not there: apt-get install chromium"


def install() -> str | None:
    """Install it, unless it is there. None, or a line that says why it is not."""
    if PLACE.exists():
        return None
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "apt-get as root would install it"
    print("Installing Chromium for the tests, a minute the first time", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (("update",), ("install", "-y", "--no-install-recommends", "chromium")):
        try:
            done = subprocess.run(
                ["apt-get", "-q", *words], env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"apt-get {words[0]} took more than {INSTALL_SECONDS:.0f} s"
        if done.returncode:
            return f"apt-get {words[0]} failed: {(done.stderr.strip() or 'it said nothing').splitlines()[-1][:160]}"
    return None if PLACE.exists() else "apt-get installed no chromium"


@contextmanager
def browser(
    width: int = 1280, height: int = 900, theme: Literal["light", "dark"] = "light", **more: Any
) -> Iterator[BrowserContext]:
    """A browser with an empty profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver, TemporaryDirectory(prefix="headgate-browser-") as profile:
        context = driver.chromium.launch_persistent_context(
            profile,
            executable_path=str(PLACE),
            args=list(FLAGS),
            viewport={"width": width, "height": height},
            color_scheme=theme,
            **more,
        )
        try:
            yield context
        finally:
            context.close()


if __name__ == "__main__":
    if reason := install():
        print(f"Chromium is not there for the tests: {reason}.", flush=True)
