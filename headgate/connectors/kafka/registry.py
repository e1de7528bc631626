"""A read-only client of a schema registry: Avro schemas by id. It knows nothing of tables.

A schema never changes under its id, so the process caches it until it ends.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import InvalidInput, NotFound, PermissionDenied, Transient

SECONDS = 10.0
"""Timeout of one request."""
TRIES = 3
"""Tries of a request that got no answer or a server error."""
MAX_ANSWER = 4 << 20
"""Bytes of an answer: enough for a schema of a hundred thousand fields."""
MAX_REFERENCES = 200
"""Schemas that one schema refers to, directly or indirectly."""

_known: dict[tuple[str, int], tuple[str, ...]] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class SchemaRegistry:
    """The registry at an address. Picklable; connects at the first request. Its repr hides the credentials."""

    url: str
    auth: str | None = field(default=None, repr=False)
    """User and password as "user:password"."""

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput("The address of a schema registry must begin with http:// or https://.")
        if parts.username or parts.password:
            raise InvalidInput(
                "The address of the schema registry contains credentials, which would be shown in logs.",
                advice="remove them from the address and pass auth='user:password'",
            )

    def schemas(self, number: int) -> tuple[str, ...]:
        """The schema with this id as JSON, after the schemas it refers to.

        Raises NotFound, PermissionDenied, InvalidInput for an invalid answer, Transient if nobody answers.
        """
        key = (self.url, number)
        with _lock:
            found = _known.get(key)
        if found is None:
            try:
                found = tuple(self._resolved(self._asked(f"schemas/ids/{number}"), set()))
            except (LookupError, TypeError, ValueError) as error:
                raise InvalidInput("The answer of the registry is no schema.", registry=self.url, id=number) from error
            with _lock:
                _known[key] = found
        return found

    def _resolved(self, answer: dict[str, Any], seen: set[tuple[str, int]]) -> list[str]:
        found: list[str] = []
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise InvalidInput(f"The registry's schema type is {answer['schemaType']!s:.20}, not Avro.")
        for one in answer.get("references") or ():
            place = (str(one["subject"]), int(one["version"]))
            if place not in seen:
                seen.add(place)
                if len(seen) > MAX_REFERENCES:
                    raise InvalidInput(
                        f"A schema refers to more than {MAX_REFERENCES} others.", registry=self.url, subject=place[0]
                    )
                subject = urllib.parse.quote(place[0], safe="")
                found += self._resolved(self._asked(f"subjects/{subject}/versions/{place[1]}"), seen)
        return [*found, str(answer["schema"])]

    def _asked(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/{path}", headers={"Accept": "application/vnd.schemaregistry.v1+json"}
        )
        if self.auth is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(self.auth.encode()).decode()}")
        reason = ""
        for _ in range(TRIES):
            try:
                with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                    data = answer.read(MAX_ANSWER + 1)
                if len(data) > MAX_ANSWER:
                    raise InvalidInput(
                        f"An answer of the schema registry has more than {MAX_ANSWER:,} bytes.",
                        registry=self.url,
                        asked=path,
                    )
                content = json.loads(data)
                return content if isinstance(content, dict) else {}
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    raise NotFound(
                        "The schema registry does not have the schema.", registry=self.url, asked=path
                    ) from None
                if error.code in (401, 403):
                    raise PermissionDenied("The schema registry rejected the credentials.", registry=self.url) from None
                reason = f"status {error.code}"
            except (OSError, ValueError, RecursionError) as error:
                reason = type(error).__name__
        raise Transient(
            f"The schema registry did not answer: {reason}.",
            registry=self.url,
            asked=path,
            advice=f"try again; if it persists, check that {self.url} is reachable from this machine",
        )
