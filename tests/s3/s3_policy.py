"""The policy on the page about S3: what its statements allow, and what a request needs of S3 and KMS."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from tests.s3.recorded_s3 import Request
from tests.support.pages import ROOT, Block

ARN = "arn:aws:s3:::"
KEY = "arn:aws:kms:eu-west-1:111122223333:key/…"

_ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| ((?:[A-Z]\w+, )*[A-Z]\w+) \|$", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Need:
    """One action on one resource, as IAM is asked for it."""

    action: str
    resource: str
    prefix: str = ""
    """Of a ListBucket."""

    @property
    def path(self) -> str:
        """The key, or the prefix of a LIST; empty for a key of KMS."""
        return self.prefix or self.resource.removeprefix(ARN).partition("/")[2] * (self.resource != KEY)

    def moved(self, place: str, to: str) -> Need:
        """The same at another place of the bucket."""
        resource = self.resource.replace(f"/{place}/", f"/{to}/", 1)
        return replace(self, resource=resource, prefix=re.sub(rf"^{re.escape(place)}/", f"{to}/", self.prefix))


@dataclass(frozen=True)
class Statement:
    """One of the policy."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: dict[str, Any]) -> Statement:
        """Out of the page. What this cannot judge is refused."""
        condition = data.get("Condition", {"StringLike": {"s3:prefix": ()}})
        assert data.keys() <= {"Sid", "Effect", "Action", "Resource", "Condition"}
        assert data["Effect"] == "Allow"
        assert [(test, *keys) for test, keys in condition.items()] == [("StringLike", "s3:prefix")]
        return cls(data["Sid"], *map(_all, (data["Action"], data["Resource"], condition["StringLike"]["s3:prefix"])))

    def allows(self, need: Need) -> bool:
        return (
            need.action in self.actions
            and any(fnmatchcase(need.resource, one) for one in self.resources)
            and (not self.prefixes or any(fnmatchcase(need.prefix, one) for one in self.prefixes))
        )

    def parts(self) -> Iterator[Statement]:
        """One per action, resource and prefix."""
        for action in self.actions:
            for resource in self.resources:
                for prefix in self.prefixes or ("",):
                    yield replace(self, actions=(action,), resources=(resource,), prefixes=_all(prefix or ()))


@dataclass(frozen=True)
class Policy:
    """The statements, and which of them each role takes."""

    statements: tuple[Statement, ...]
    roles: dict[str, frozenset[str]]

    def of(self, role: str) -> list[Statement]:
        return [one for one in self.statements if one.sid in self.roles[role]]

    def missing(self, life: dict[str, set[Need]]) -> list[str]:
        """Of each role the requests that it would be refused."""
        return [
            f"{role}: {need.action} {need.path}"
            for role, needs in life.items()
            for need in sorted(needs)
            if not any(one.allows(need) for one in self.of(role))
        ]

    def spare(self, life: dict[str, set[Need]]) -> list[str]:
        """What nobody uses: statements that a role can do without, and parts of one that no role needs."""
        found = []
        for role, needs in life.items():
            for one in self.of(role):
                others = [other for other in self.of(role) if other is not one]
                own = (need for need in needs if not any(other.allows(need) for other in others))
                if not any(one.allows(need) for need in own):
                    found.append(f"{role}: {one.sid}")
        for one in self.statements:
            takers = [role for role in life if one.sid in self.roles[role]]
            used = {need for role in takers for need in life[role]}
            found += [str(part) for part in one.parts() if takers and not any(map(part.allows, used))]
        return found


def policy_of(block: Block) -> Policy:
    """That of a block, and the roles that a table of its page has."""
    statements = tuple(map(Statement.of, json.loads(block.text)["Statement"]))
    rows = _ROW.findall((ROOT / block.page).read_text())
    roles = {role: frozenset(sids.split(", ")) for role, sids in rows}
    assert {one.sid for one in statements} == frozenset().union(*roles.values())
    return Policy(statements, roles)


def needs_of(request: Request) -> Iterator[Need]:
    """What S3 asks IAM before it answers; with SSE-KMS, what it asks of the key as well.

    A key that is not there is told to those who may list it, with the key as the prefix; others get 403.
    """
    bucket, verb, query = ARN + request.bucket, request.verb, request.query
    here = f"{bucket}/{request.key}"
    assert "x-amz-tagging" not in request.headers, "this needs an action of its own"
    assert "x-amz-acl" not in request.headers, "this needs an action of its own"
    if request.lists:
        yield Need("s3:ListBucket", bucket, query.get("prefix", ""))
    elif verb == "POST" and "delete" in query:
        for key in re.findall(r"<Key>(.*?)</Key>", request.body.decode()):
            yield Need("s3:DeleteObject", f"{bucket}/{key}")
    elif verb in ("GET", "HEAD") and request.key:
        yield from (Need("s3:GetObject", here), Need("kms:Decrypt", KEY))
        if request.status == 404:
            yield Need("s3:ListBucket", bucket, request.key)
    elif verb == "PUT" or (verb == "POST" and query.keys() & {"uploads", "uploadId"}):
        yield from (Need("s3:PutObject", here), Need("kms:GenerateDataKey", KEY))
        if request.source is not None:
            yield Need("s3:GetObject", ARN + request.source)
        if request.source is not None or query:
            yield Need("kms:Decrypt", KEY)
    elif verb == "DELETE":
        yield Need("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", here)
    else:
        raise AssertionError(f"nobody has said what this needs: {request}")


def _all(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
