"""Storage options of S3, under the names that pylance takes, checked before anything native is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headgate.connectors.objects.secrets import remember
from headgate.errors import InvalidInput, nearest

OF_S3 = frozenset(
    {
        "access_key_id",
        "secret_access_key",
        "session_token",
        "token",
        "region",
        "default_region",
        "endpoint",
        "endpoint_url",
        "endpoint_url_s3",
        "virtual_hosted_style_request",
        "unsigned_payload",
        "skip_signature",
        "checksum_algorithm",
        "disable_tagging",
        "disable_bulk_delete",
        "request_payer",
        "s3_express",
        "role_arn",
        "role_session_name",
        "web_identity_token_file",
        "endpoint_url_sts",
        "imdsv1_fallback",
        "metadata_endpoint",
        "container_credentials_relative_uri",
        "container_credentials_full_uri",
        "container_authorization_token_file",
        "server_side_encryption",
        "sse_kms_key_id",
        "sse_bucket_key_enabled",
        "sse_customer_key_base64",
    }
)
OF_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "timeout",
        "read_timeout",
        "default_content_type",
        "http1_only",
        "http2_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "randomize_addresses",
        "user_agent",
    }
)
_OF_LANCE_ALONE = frozenset({"client_max_retries", "client_retry_timeout", "download_retry_count"})
"""Meant for pylance, which shares the options; this store has a retry of its own."""
_SECRET = ("access_key_id", "secret_access_key", "session_token", "token", "sse_customer_key_base64")


def checked_options(options: Mapping[str, object]) -> dict[str, str]:
    """The options as obstore takes them. Raises InvalidInput for an unknown name, with the nearest known one.

    Names may be upper-case and with or without `aws_`; a value is never part of an error.
    """
    checked: dict[str, str] = {}
    for given, value in options.items():
        name = given.lower().removeprefix("aws_")
        if name in _OF_LANCE_ALONE:
            continue
        if name not in OF_S3 | OF_CLIENT:
            near = nearest(name, OF_S3 | OF_CLIENT)
            hint = f" Did you mean {_spelled(near)!r}?" if near else ""
            raise InvalidInput(f"Storage option {given!r} is unknown.{hint}", known=_known_names())
        checked[_spelled(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    _refuse_plain_http_by_accident(checked)
    remember(secrets_of(checked))
    # One request per key works on every S3-compatible server; deletes here are of single keys.
    checked.setdefault("aws_disable_bulk_delete", "true")
    return checked


def secrets_of(checked: Mapping[str, str]) -> tuple[str, ...]:
    """The values that no message may show."""
    return tuple(value for name in _SECRET if (value := checked.get(_spelled(name))))


def _spelled(name: str) -> str:
    return f"aws_{name}" if name in OF_S3 else name


def _known_names() -> str:
    return " ".join(sorted(_spelled(name) for name in OF_S3 | OF_CLIENT))


def _refuse_plain_http_by_accident(checked: Mapping[str, str]) -> None:
    plain = any(checked.get(f"aws_{name}", "").startswith("http://") for name in ("endpoint", "endpoint_url"))
    allowed = checked.get("allow_http") or os.environ.get("AWS_ALLOW_HTTP", "")
    if plain and allowed.lower() not in ("true", "1"):
        raise InvalidInput("The endpoint is plain http.", advice="set allow_http='true', or give an https endpoint")
