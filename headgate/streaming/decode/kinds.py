"""The decoders of headgate, by name: what `--decode`, the option `decode` of `format("headgate")` and `headgate verify`
know. A new one is a file with its KIND, and its place in this list.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.streaming.decode import debezium, raw
from headgate.streaming.decode.avro import decoder as avro
from headgate.streaming.decode.contract import Decoder, DecoderKind
from headgate.streaming.decode.json import decoder as json

KINDS: Mapping[str, DecoderKind] = {kind.name: kind for kind in (json.KIND, debezium.KIND, avro.KIND, raw.KIND)}

DEFAULT = json.KIND
"""Of a command that is not told, and of a stream that did not record it."""


def kind_of(decoder: Decoder) -> DecoderKind | None:
    """The kind of a decoder; None for one of somebody's own."""
    return next((kind for kind in KINDS.values() if kind.decoder is type(decoder)), None)
