"""An S3 server that takes the newest key and the one before, and the endpoint of a container that tells which: a role,
as ECS and EKS have them, on loopback.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.s3.moto_front import App, Respond, moto_behind

TOKEN = "the-token-of-the-container"
CREDENTIALS = "/credentials"
SOON = timedelta(seconds=45)
"""Until a key ends, as the endpoint tells: so soon that both clients ask again before they use it once more."""
REFUSED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


@dataclass
class RotatingS3:
    """moto, behind a look at the key that each request was signed with."""

    app: App = field(repr=False)
    endpoint: str = ""
    turn: int = 1
    asked: int = 0
    """How often credentials were asked for."""
    used: Counter[str] = field(default_factory=Counter)
    """Requests by key."""
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def key(self) -> str:
        """The one that is good now."""
        return f"AKIATURN{self.turn}"

    @property
    def secret(self) -> str:
        """Of that key."""
        return f"the-secret-of-turn-{self.turn}"

    def rotate(self) -> None:
        """From now on there is another key. The one before is good until the next turn, for who has just signed."""
        self.turn += 1

    def environment(self, token_file: str | None) -> dict[str, str]:
        """What a container has, with its token in a file or in the environment, and where the server is."""
        token = {"_FILE": token_file} if token_file else {"": TOKEN}
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.endpoint}{CREDENTIALS}",
            **{f"AWS_CONTAINER_AUTHORIZATION_TOKEN{kind}": value for kind, value in token.items()},
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def __call__(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        if environ["PATH_INFO"] == CREDENTIALS:
            return self._credentials(environ, respond)
        found = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        key = found[1] if found else "nobody"
        if key not in (self.key, f"AKIATURN{self.turn - 1}"):
            self.refused[key] += 1
            respond("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(REFUSED)))])
            return [REFUSED]
        self.used[key] += 1
        return self.app(environ, respond)

    def _credentials(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        if environ.get("HTTP_AUTHORIZATION") != TOKEN:
            respond("401 Unauthorized", [("Content-Length", "0")])
            return [b""]
        self.asked += 1
        ends = (datetime.now(UTC) + SOON).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = {"AccessKeyId": self.key, "SecretAccessKey": self.secret, "Token": f"session {self.turn}"}
        body = json.dumps({**told, "Expiration": ends}).encode()
        respond("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def rotating_s3() -> AbstractContextManager[RotatingS3]:
    """The server, while it runs, with its credentials on the same port."""
    return moto_behind(RotatingS3)
