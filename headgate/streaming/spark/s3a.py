"""Spark's own checkpoint on S3: the jars and settings with which Spark reads and encrypts `s3a://` locations.

They are added only on request: a checkpoint on a disk that outlives the driver needs neither. Keys in the environment
stay there: Hadoop reads them itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from headgate.connectors.jars.lists import s3a_jars
from headgate.connectors.objects.s3.options import HADOOP, plain_name
from headgate.connectors.objects.wal_options import own_options

SCHEME = "s3a://"
"""Hadoop's scheme for S3. Only Amazon's own Spark supports `s3://`."""

_ENCRYPTION = {"AES256": "AES256", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}
"""Hadoop's name for each S3 encryption. Encryption with the caller's own key is left out: Spark would show that key."""

_KEPT_FOLDERS = {"spark.hadoop.fs.s3a.directory.marker.retention": "keep"}
"""As Hadoop 3.4 and newer do anyway. The Hadoop of Spark 3.5 deletes the markers of a file's folders with each file:
servers that know folders refuse that, and Hadoop tries again for minutes.
"""

_ENVIRONMENT = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "endpoint.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "encryption.algorithm": ("AWS_SERVER_SIDE_ENCRYPTION",),
    "encryption.key": ("AWS_SSE_KMS_KEY_ID",),
}
"""Environment variables that Hadoop does not read, but both of our clients do."""


def s3a_settings(storage_options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings for `local_session(settings=…)` or your own session: store and encryption from the options, else from
    the environment. Keys in the options become part of the settings; Spark redacts them wherever it shows settings.
    """
    found: dict[str, str] = {}
    for name, value in own_options(storage_options).items():
        if (hadoop := HADOOP.get(plain_name(name))) is not None:
            found[hadoop] = str(value)
    for name, variables in _ENVIRONMENT.items():
        given = next((os.environ[variable] for variable in variables if os.environ.get(variable)), None)
        if given:
            found.setdefault(name, given)
    if "endpoint" in found:
        # Self-hosted servers rarely have a host name per bucket.
        found["path.style.access"] = "true"
        found["connection.ssl.enabled"] = str(not found["endpoint"].startswith("http://")).lower()
    if "session.token" in found:
        found["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    algorithm = _ENCRYPTION.get(found.pop("encryption.algorithm", ""))
    kms_key = found.pop("encryption.key", None)
    if algorithm is not None:
        found["encryption.algorithm"] = algorithm
        if kms_key and algorithm.endswith("KMS"):
            found["encryption.key"] = kms_key
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in found.items()}


def reaches(place: str, storage_options: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings, jars included, that Spark needs for a checkpoint or ledger at a location; empty if it is not on
    s3a.

    Raises JarsMissing.
    """
    if not place.lower().startswith(SCHEME):
        return {}
    return {**s3a_settings(storage_options), **_KEPT_FOLDERS, "spark.jars": ",".join(map(str, s3a_jars()))}
