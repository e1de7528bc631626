"""The built-in decoders by name, for `--decode`, the option `decode` of `format("headgate")` and `headgate verify`. To
add a decoder, define its KIND in a file of its own and add it to this list.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.streaming.decode import debezium, raw
from headgate.streaming.decode.avro import decoder as avro
from headgate.streaming.decode.contract import Decoder, DecoderKind
from headgate.streaming.decode.json import decoder as json

KINDS: Mapping[str, DecoderKind] = {kind.name: kind for kind in (json.KIND, debezium.KIND, avro.KIND, raw.KIND)}

DEFAULT = json.KIND
"""Used if a command names no decoder, or a stream did not record one."""


def kind_of(decoder: Decoder) -> DecoderKind | None:
    """The kind of a decoder; None for a custom one."""
    return next((kind for kind in KINDS.values() if kind.decoder is type(decoder)), None)
