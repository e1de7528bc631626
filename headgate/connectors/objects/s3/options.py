"""Storage options of S3, under pylance's names, checked before native code is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from headgate.connectors.objects.secrets import remember
from headgate.errors import InvalidInput, nearest


class S3Option(NamedTuple):
    """One option: its names, its name in Hadoop (below fs.s3a) and s3fs, and whether it is a secret."""

    spellings: tuple[str, ...]
    hadoop: str | None = None
    s3fs: str | None = None
    secret: bool = False


S3_OPTIONS = (
    S3Option(("access_key_id",), "access.key", "key", secret=True),
    S3Option(("secret_access_key",), "secret.key", "secret", secret=True),
    S3Option(("session_token", "token"), "session.token", "token", secret=True),
    S3Option(("endpoint", "endpoint_url", "endpoint_url_s3"), "endpoint", "endpoint_url"),
    S3Option(("region", "default_region"), "endpoint.region"),
    S3Option(("server_side_encryption",), "encryption.algorithm"),
    S3Option(("sse_kms_key_id",), "encryption.key"),
    S3Option(("sse_bucket_key_enabled",)),
    S3Option(("sse_customer_key_base64",), secret=True),
    S3Option(("virtual_hosted_style_request",)),
    S3Option(("unsigned_payload",)),
    S3Option(("skip_signature",)),
    S3Option(("checksum_algorithm",)),
    S3Option(("disable_tagging",)),
    S3Option(("disable_bulk_delete",)),
    S3Option(("request_payer",)),
    S3Option(("s3_express",)),
    S3Option(("role_arn",)),
    S3Option(("role_session_name",)),
    S3Option(("web_identity_token_file",)),
    S3Option(("endpoint_url_sts",)),
    S3Option(("imdsv1_fallback",)),
    S3Option(("metadata_endpoint",)),
    S3Option(("container_credentials_relative_uri",)),
    S3Option(("container_credentials_full_uri",)),
    S3Option(("container_authorization_token_file",)),
)
"""All options of S3. The options of Spark's own clients are derived from it."""
OF_S3 = frozenset(name for one in S3_OPTIONS for name in one.spellings)
HADOOP = {name: one.hadoop for one in S3_OPTIONS if one.hadoop for name in one.spellings}
S3FS = {name: one.s3fs for one in S3_OPTIONS if one.s3fs for name in one.spellings}
_SECRET = tuple(name for one in S3_OPTIONS if one.secret for name in one.spellings)
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
"""Options for pylance only, ignored here; this store has its own retries."""


def plain_name(given: str) -> str:
    """The normalised name: options may be given in upper case, and with or without `aws_`."""
    return given.lower().removeprefix("aws_")


def checked_options(options: Mapping[str, object]) -> dict[str, str]:
    """The options for obstore. Raises InvalidInput for an unknown name, with the nearest known one.

    Errors never contain a value.
    """
    checked: dict[str, str] = {}
    for given, value in options.items():
        name = plain_name(given)
        if name in _OF_LANCE_ALONE:
            continue
        if name not in OF_S3 | OF_CLIENT:
            near = nearest(name, OF_S3 | OF_CLIENT)
            hint = f" Did you mean {_spelled(near)!r}?" if near else ""
            raise InvalidInput(f"Storage option {given!r} is unknown.{hint}", known=_known_names())
        checked[_spelled(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    _refuse_plain_http_by_accident(checked)
    remember(secrets_of(checked))
    # Deletes here are of single keys, and one request per key works on every S3-compatible server.
    checked.setdefault("aws_disable_bulk_delete", "true")
    return checked


def secrets_of(checked: Mapping[str, str]) -> tuple[str, ...]:
    """The values that no message may contain."""
    return tuple(value for name in _SECRET if (value := checked.get(_spelled(name))))


def _spelled(name: str) -> str:
    return f"aws_{name}" if name in OF_S3 else name


def _known_names() -> str:
    return " ".join(sorted(_spelled(name) for name in OF_S3 | OF_CLIENT))


def _refuse_plain_http_by_accident(checked: Mapping[str, str]) -> None:
    plain = any(checked.get(f"aws_{name}", "").startswith("http://") for name in ("endpoint", "endpoint_url"))
    allowed = checked.get("allow_http") or os.environ.get("AWS_ALLOW_HTTP", "")
    if plain and allowed.lower() not in ("true", "1"):
        raise InvalidInput("The endpoint uses plain http.", advice="set allow_http='true', or use an https endpoint")
