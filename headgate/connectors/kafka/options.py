"""Spark's Kafka source options as a librdkafka configuration, so that both clients read the same rows.

An option is translated, known to have no effect here, or refused by name: none is ignored silently. No value is ever
part of an error, a log line or a repr, except the addresses and the isolation level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headgate.errors import InvalidInput, nearest

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
LOSS_SECONDS = 45.0
"""After a crash a restarted broker may not know the topic or its end for some seconds, on a busy machine for more than
ten. A log that ends too early therefore counts as lost only after this many seconds. Offsets below the log's start
never come back, so they count as lost at once.
"""

_SHOWN = ("bootstrap.servers", "security.protocol", "isolation.level")
"""Options that a repr may show; all others may be secret."""


@dataclass(frozen=True, slots=True, repr=False)
class ConsumerConfig:
    """A librdkafka configuration. Equal ones share a cached consumer; picklable, and safe to print."""

    properties: tuple[tuple[str, str], ...]

    @classmethod
    def from_spark(cls, options: Mapping[str, object]) -> ConsumerConfig:
        """Translate the options of `spark.readStream.format("kafka")`. Names are matched without case.

        Raises InvalidInput that names the option that cannot be translated, never its value.
        """
        given = {name.lower(): _text(value) for name, value in options.items()}
        kafka = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
        _check_spark_options({name: value for name, value in given.items() if not name.startswith("kafka.")})
        if not kafka.get("bootstrap.servers", "").strip():
            raise InvalidInput("The option 'kafka.bootstrap.servers' is missing.")
        translated = dict(_DEFAULTS)
        translated |= _sasl(kafka) | _tls(kafka)
        for name, value in kafka.items():
            if name in _SAME:
                translated[name] = value
            elif name in _RENAMED:
                translated[_RENAMED[name]] = value
            elif name in _CONVERTED:
                target, convert = _CONVERTED[name]
                translated[target] = convert(value)
            elif name not in _WITHOUT_EFFECT | _SASL | _TLS:
                raise _refused(name)
        if translated["isolation.level"] not in (READ_COMMITTED, READ_UNCOMMITTED):
            raise InvalidInput(
                f"The option 'kafka.isolation.level' must be {READ_COMMITTED!r} or {READ_UNCOMMITTED!r}."
            )
        return cls(tuple(sorted(translated.items())))

    @property
    def servers(self) -> str:
        """The bootstrap addresses; fit for errors."""
        return dict(self.properties)["bootstrap.servers"]

    @property
    def reach(self) -> str:
        """Advice if Kafka does not answer."""
        return reach(self.servers)

    def with_isolation(self, level: str) -> ConsumerConfig:
        """The same configuration with another isolation level."""
        return replace(self, properties=tuple(sorted({**dict(self.properties), "isolation.level": level}.items())))

    def fetching_at_most(self, nbytes: int) -> ConsumerConfig:
        """The same configuration with fetches of at most about so many bytes; a record batch is never split."""
        given = int(dict(self.properties).get("max.partition.fetch.bytes", nbytes))
        less = {"max.partition.fetch.bytes": str(min(given, nbytes))}
        return replace(self, properties=tuple(sorted({**dict(self.properties), **less}.items())))

    def librdkafka(self) -> dict[str, str]:
        """The librdkafka configuration. Contains credentials: pass it only to a client."""
        return dict(self.properties)

    def __repr__(self) -> str:
        facts = [f"{name}={value}" if name in _SHOWN else f"{name}=…" for name, value in self.properties]
        return f"ConsumerConfig({', '.join(facts)})"


_DEFAULTS = {
    # The defaults of Kafka's Java client, which Spark uses; librdkafka's differ.
    "isolation.level": READ_UNCOMMITTED,
    "check.crcs": "true",
    # headgate joins no group and commits no offsets with it, but librdkafka requires a group id.
    "group.id": "headgate-direct",
}

_SAME = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        "isolation.level",
        "check.crcs",
        "client.id",
        "client.rack",
        "client.dns.lookup",
        "group.id",
        "fetch.min.bytes",
        "fetch.max.bytes",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "connections.max.idle.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
_RENAMED = {"fetch.max.wait.ms": "fetch.wait.max.ms", "request.timeout.ms": "socket.timeout.ms"}


def _os_default(value: str) -> str:
    """The system's default buffer size is -1 in Java and 0 in librdkafka."""
    return "0" if value.strip() == "-1" else value


_CONVERTED: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "receive.buffer.bytes": ("socket.receive.buffer.bytes", _os_default),
    "send.buffer.bytes": ("socket.send.buffer.bytes", _os_default),
}

_WITHOUT_EFFECT = frozenset(
    {
        # Options for groups, polling and missing topics. They do not change which rows a range returns.
        "allow.auto.create.topics",
        "default.api.timeout.ms",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
    }
)

_PLANNING = frozenset(
    {
        # Spark uses these to plan offsets; a range that is read afterwards already reflects them.
        "assign",
        "subscribe",
        "subscribepattern",
        "startingoffsets",
        "startingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
        "startingtimestamp",
        "endingoffsets",
        "endingoffsetsbytimestamp",
        "endingtimestamp",
        "maxoffsetspertrigger",
        "minoffsetspertrigger",
        "maxtriggerdelay",
        "minpartitions",
        "maxrecordsperpartition",
        "groupidprefix",
        "includeheaders",
        "failondataloss",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
    }
)


def _check_spark_options(options: Mapping[str, str]) -> None:
    for name in options:
        if name not in _PLANNING:
            raise InvalidInput(f"The Kafka source has no option {name!r}.{_nearest(name, _PLANNING)}")
    if options.get("failondataloss", "true").strip().lower() != "true":
        raise InvalidInput(
            "The option 'failOnDataLoss' must be true: headgate never skips lost rows silently.",
            advice="leave the option out",
        )


# -- SASL --------------------------------------------------------------------------

_SASL = frozenset({"sasl.mechanism", "sasl.jaas.config"})
_MODULES = {"PLAIN": "PlainLoginModule", "SCRAM-SHA-256": "ScramLoginModule", "SCRAM-SHA-512": "ScramLoginModule"}
_JAAS = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*);\s*", re.DOTALL
)
_JAAS_OPTION = re.compile(
    r"""\s*(?P<name>[\w.]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<bare>[^\s;"']+))""",
    re.DOTALL,
)


def _sasl(kafka: Mapping[str, str]) -> dict[str, str]:
    wanted = kafka.get("security.protocol", "").strip().upper().startswith("SASL")
    if not wanted:
        return {}
    mechanism = kafka.get("sasl.mechanism", "GSSAPI").strip().upper()
    if mechanism not in _MODULES:
        raise InvalidInput(
            "The option 'kafka.sasl.mechanism' has a mechanism that direct reading does not support.",
            known=" ".join(_MODULES),
            advice="use one of the known mechanisms, or read with Spark's Kafka source",
        )
    user, password = _login(kafka.get("sasl.jaas.config", ""), _MODULES[mechanism])
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


def _login(jaas: str, module: str) -> tuple[str, str]:
    """User and password in a JAAS line for the module. Raises InvalidInput, which never quotes the line."""
    advice = f'write it as: {module} required username="…" password="…";'
    matched = _JAAS.fullmatch(jaas)
    if matched is None or matched["module"].rpartition(".")[2] != module:
        raise InvalidInput(f"The option 'kafka.sasl.jaas.config' must be one {module} entry.", advice=advice)
    found: dict[str, str] = {}
    rest = matched["options"].strip()
    while rest:
        option = _JAAS_OPTION.match(rest)
        if option is None:
            raise InvalidInput("The option 'kafka.sasl.jaas.config' is invalid.", advice=advice)
        quoted = option["quoted"] if option["quoted"] is not None else option["single"]
        found[option["name"]] = option["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        rest = rest[option.end() :].strip()
    if set(found) != {"username", "password"}:
        raise InvalidInput("The option 'kafka.sasl.jaas.config' must have username and password only.", advice=advice)
    return found["username"], found["password"]


# -- TLS ---------------------------------------------------------------------------

_TLS = frozenset(
    {
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)


def _tls(kafka: Mapping[str, str]) -> dict[str, str]:
    return _trust(kafka) | _identity(kafka) | _host_check(kafka)


def _trust(kafka: Mapping[str, str]) -> dict[str, str]:
    location, certificates = kafka.get("ssl.truststore.location"), kafka.get("ssl.truststore.certificates")
    if location is None and certificates is None:
        return {}
    if kafka.get("ssl.truststore.type", "JKS").strip().upper() != "PEM":
        raise _not_pem("kafka.ssl.truststore.type")
    # Java takes one of the two, and so does librdkafka.
    return {"ssl.ca.location": location} if location is not None else {"ssl.ca.pem": certificates or ""}


def _identity(kafka: Mapping[str, str]) -> dict[str, str]:
    location, kind = kafka.get("ssl.keystore.location"), kafka.get("ssl.keystore.type", "JKS").strip().upper()
    chain, key = kafka.get("ssl.keystore.certificate.chain"), kafka.get("ssl.keystore.key")
    found: dict[str, str] = {}
    if location is not None and kind == "PKCS12":
        found["ssl.keystore.location"] = location
        if "ssl.keystore.password" in kafka:
            found["ssl.keystore.password"] = kafka["ssl.keystore.password"]
    elif location is not None and kind == "PEM":
        # Java's PEM store is one file with the key and the chain; OpenSSL finds each in it.
        found |= {"ssl.certificate.location": location, "ssl.key.location": location}
    elif chain is not None and key is not None and kind == "PEM":
        found |= {"ssl.certificate.pem": chain, "ssl.key.pem": key}
    elif location is not None or chain is not None or key is not None:
        raise _not_pem("kafka.ssl.keystore.type")
    if "ssl.key.password" in kafka:
        found["ssl.key.password"] = kafka["ssl.key.password"]
    return found


def _host_check(kafka: Mapping[str, str]) -> dict[str, str]:
    name = "ssl.endpoint.identification.algorithm"
    if name not in kafka:
        return {}
    algorithm = kafka[name].strip().lower()
    if algorithm not in ("https", ""):
        raise InvalidInput(f"The option 'kafka.{name}' must be 'https' or empty.")
    return {name: algorithm or "none"}


def _not_pem(option: str) -> InvalidInput:
    return InvalidInput(
        f"The option {option!r} must be PEM for direct reading (a keystore may be PKCS12); JKS works only in Java.",
        advice="convert the store with keytool and openssl, or read with Spark's Kafka source",
    )


# -- refusing ------------------------------------------------------------------------


def _refused(name: str) -> InvalidInput:
    known = _SAME | set(_RENAMED) | set(_CONVERTED) | _SASL | _TLS
    return InvalidInput(
        f"The option 'kafka.{name}' is not supported by direct reading.{_nearest(name, known)}",
        advice="leave the option out, or read with Spark's Kafka source",
    )


def _nearest(name: str, known: frozenset[str] | set[str]) -> str:
    near = nearest(name, known)
    return f" Did you mean {near!r}?" if near else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def reach(servers: str) -> str:
    """Advice if the brokers at these addresses do not answer."""
    return f"try again; if it persists, check that Kafka at {servers} is reachable from this machine"
