"""Credentials of a profile, which obstore does not look for: from ~/.aws, a role, SSO or a program that prints them.

The order is that of pylance and of AWS's own tools: options, environment, web identity or container, profile, machine.
All but the profile are obstore's own, which renews them. What a profile gives is asked for anew every few minutes, in
the process that uses it: botocore, which keeps it, renews it before it ends. Nothing is ever sent along with a store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.connectors.objects.secrets import remember
from headgate.errors import InvalidInput, PermissionDenied

if TYPE_CHECKING:
    from obstore.store import S3Credential

_ASKED_AGAIN = timedelta(minutes=5)
"""botocore renews ten minutes before the end at the latest, so that what it gave is good for this long."""
_GIVEN = (
    "access_key_id",
    "skip_signature",
    "role_arn",
    "web_identity_token_file",
    "container_credentials_relative_uri",
)
_OF_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


class ProfileCredentials:
    """What obstore calls when it has no credentials, or those that it has are too old."""

    def __init__(self, session: Any) -> None:
        self._credentials = session.get_credentials()
        if self._credentials is None:
            raise PermissionDenied(
                "The profile has no credentials.",
                profile=session.profile or "default",
                advice="check AWS_PROFILE and the files in ~/.aws",
            )
        self.region: str | None = session.get_config_variable("region")

    def __call__(self) -> S3Credential:
        """The credentials as they are now."""
        now = self._credentials.get_frozen_credentials()
        remember((now.access_key, now.secret_key, now.token))
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(UTC) + _ASKED_AGAIN,
        }


def profile_credentials(options: Mapping[str, str]) -> ProfileCredentials | None:
    """Those of AWS_PROFILE or of the default profile, None where something that goes before them is there.

    Raises InvalidInput where a profile is named that cannot be read, PermissionDenied where it has none.
    """
    if any(options.get(f"aws_{name}") for name in _GIVEN) or any(os.environ.get(name) for name in _OF_ENVIRONMENT):
        return None
    named = os.environ.get("AWS_PROFILE")
    if not named and not _credentials_file().exists():
        return None
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        if not named:
            return None
        advice = "pip install 'headgate[s3]', or give credentials by environment or storage options"
        raise InvalidInput(
            "AWS_PROFILE is set, and botocore, which reads profiles, is missing.", advice=advice
        ) from error
    try:
        return ProfileCredentials(Session(profile=named))
    except BotoCoreError as error:
        raise InvalidInput(f"The profile {named or 'default'!r} cannot be read.", advice="check ~/.aws") from error


def _credentials_file() -> Path:
    return Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
