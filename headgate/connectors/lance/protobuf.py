"""Native Lance's protobuf messages, described in code: only the messages and fields that headgate reads or writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "lance.table"


def message_classes(messages: Mapping[str, str]) -> dict[str, Any]:
    """A class per message. Fields are `name=number:type`, with `?` for optional and `*` for repeated.

    They have a descriptor pool of their own: another package in this process may register Lance's messages.
    """
    kind_of = descriptor_pb2.FieldDescriptorProto
    kinds = {"u32": kind_of.TYPE_UINT32, "u64": kind_of.TYPE_UINT64, "i32": kind_of.TYPE_INT32}
    kinds |= {"bytes": kind_of.TYPE_BYTES, "str": kind_of.TYPE_STRING}
    file = descriptor_pb2.FileDescriptorProto(name="messages.proto", package=_PACKAGE, syntax="proto3")
    for message_name, text in messages.items():
        message = file.message_type.add(name=message_name)
        for part in text.split():
            name, _, rest = part.partition("=")
            number, _, kind = rest.partition(":")
            field = message.field.add(name=name, number=int(number))
            field.label = kind_of.LABEL_REPEATED if kind.endswith("*") else kind_of.LABEL_OPTIONAL
            if kind.endswith("?"):
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")
            kind = kind.rstrip("?*")
            if kind in kinds:
                field.type = kinds[kind]
            else:
                field.type, field.type_name = kind_of.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in messages
    }
