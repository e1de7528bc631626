"""Credentials that obstore does not support: of a profile (~/.aws, a role, SSO or a program that prints them), and of a
container whose token is not in a file.

The order is that of pylance and of AWS's own tools: options, environment, web identity or container, profile, machine.
obstore itself finds and renews the others. Those here are requested again every few minutes, in the process that uses
them: botocore caches them and renews them before they expire. Credentials are never pickled with a store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate import clock
from headgate.connectors.objects.secrets import remember
from headgate.errors import InvalidInput, PermissionDenied, Transient

if TYPE_CHECKING:
    from obstore.store import S3Credential

_ASKED_AGAIN = timedelta(minutes=5)
"""botocore renews at the latest ten minutes before credentials expire, so they are valid for this long."""
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


class RenewedCredentials:
    """A callable for obstore, which calls it if it has no credentials or they are too old."""

    def __init__(self, credentials: Any, region: str | None = None) -> None:
        self._credentials, self.region = credentials, region

    def __call__(self) -> S3Credential:
        """The current credentials."""
        now = self._credentials.get_frozen_credentials()
        remember((now.access_key, now.secret_key, now.token))
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": clock.now() + _ASKED_AGAIN,
        }


def renewed_credentials(options: Mapping[str, str]) -> RenewedCredentials | None:
    """Credentials of a container or a profile, or None if obstore finds others with higher priority.

    Raises InvalidInput, PermissionDenied, Transient.
    """
    if any(options.get(f"aws_{name}") for name in _GIVEN):
        return None
    before = [name for name in _OF_ENVIRONMENT if os.environ.get(name)]
    # For a container at a full URI, obstore supports only a token in a file, as EKS has it.
    if before == [_OF_ENVIRONMENT[-1]] and not os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        return _of_container()
    return None if before else _of_profile()


def _of_container() -> RenewedCredentials:
    try:
        from botocore.credentials import ContainerProvider
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise InvalidInput(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI is set without a token file, which needs botocore, and "
            "botocore is not installed.",
            advice="pip install 'headgate[s3]'",
        ) from error
    try:
        return RenewedCredentials(ContainerProvider().load())
    except BotoCoreError as error:
        raise Transient(
            "Getting the container's credentials failed.", advice="check AWS_CONTAINER_CREDENTIALS_FULL_URI"
        ) from error
    except (ValueError, KeyError) as error:
        # botocore may reject the address or the token, or the response may have no credentials. Its text may quote
        # them, so it is not shown.
        raise InvalidInput(
            f"Getting the container's credentials failed ({type(error).__name__}).",
            advice="check AWS_CONTAINER_CREDENTIALS_FULL_URI and AWS_CONTAINER_AUTHORIZATION_TOKEN",
        ) from None


def _of_profile() -> RenewedCredentials | None:
    """Credentials of AWS_PROFILE or of the default profile; None if there is neither."""
    named = os.environ.get("AWS_PROFILE")
    if not named and not _credentials_file().exists():
        return None
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        if not named:
            return None
        advice = "pip install 'headgate[s3]', or pass credentials in the environment or storage options"
        raise InvalidInput(
            "AWS_PROFILE is set, but botocore, which reads profiles, is not installed.", advice=advice
        ) from error
    try:
        session = Session(profile=named)
        credentials = session.get_credentials()
        region: str | None = session.get_config_variable("region")
    except BotoCoreError as error:
        raise InvalidInput(f"Reading the AWS profile {named or 'default'!r} failed.", advice="check ~/.aws") from error
    if credentials is None:
        raise PermissionDenied(
            "The AWS profile has no credentials.",
            profile=named or "default",
            advice="check AWS_PROFILE and the files in ~/.aws",
        )
    return RenewedCredentials(credentials, region)


def _credentials_file() -> Path:
    return Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
