from __future__ import annotations

import dataclasses
import pickle
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import Corrupt, InvalidInput
from headgate.shards.manifest.model import (
    CLAIM_ID,
    MAX_BYTES,
    OWNER,
    WRITE_ID,
    Manifest,
    SsTable,
    check_successor,
    decode_manifest,
    encode_manifest,
)

SHARD = UUID("1d33c9c4-0275-4cf8-a688-e85bf5cc99b8")
UUID_FIELD = bytes.fromhex("5a120a10") + SHARD.bytes

V1 = bytes.fromhex("080110013001") + UUID_FIELD
V2 = (
    bytes.fromhex("0802100118032003300242190801120e") + b"4861b040_gen_1" + bytes.fromhex("18c10120042820") + UUID_FIELD
)

FULL = Manifest(
    version=9,
    epoch=4,
    replay_after=17,
    last_seen=21,
    generation=5,
    sstables=(SsTable(1, "aaaaaaaa_gen_1"), SsTable(3, "bbbbbbbb_gen_3", 0, 12, 2**40)),
    spec_id=1,
    shard_id=SHARD,
    fields=(("bucket", b"\x03\0\0\0"), (CLAIM_ID, b"c1"), (OWNER, b"s1"), (WRITE_ID, b"w1"), ("empty", b"")),
    sealed=True,
)


def decode(data: bytes, version: int = 1) -> Manifest:
    return decode_manifest(data, shard_id=SHARD, version=version)


def test_a_new_shards_manifest_is_native_to_the_byte() -> None:
    manifest = Manifest(version=1, epoch=1, shard_id=SHARD)
    assert len(V1) == 26
    assert encode_manifest(manifest) == V1
    assert decode(V1) == manifest


def test_a_flushed_shards_manifest_is_native_to_the_byte() -> None:
    sstable = SsTable(1, "4861b040_gen_1", in_memory_bytes=193, physical_rows=4, primary_key_bytes=32)
    manifest = Manifest(
        version=2, epoch=1, replay_after=3, last_seen=3, generation=2, sstables=(sstable,), shard_id=SHARD
    )
    assert len(V2) == 57
    assert encode_manifest(manifest) == V2
    assert decode(V2, 2) == manifest


def test_every_field_survives() -> None:
    again = decode(encode_manifest(FULL), 9)
    assert again == FULL
    assert (again.claim_id, again.owner, again.write_id) == ("c1", "s1", "w1")
    assert pickle.loads(pickle.dumps(again)) == again
    assert decode_manifest(memoryview(encode_manifest(FULL)), shard_id=SHARD, version=9) == FULL


def test_fields_of_a_newer_lance_survive_a_rewrite() -> None:
    newer = bytes.fromhex("a00105") + b"\xaa\x01\x03abc"  # field 20 varint, field 21 text
    sstable = b"\x08\x01\x12\x01p" + newer
    data = encode_manifest(Manifest(version=1, epoch=1, generation=2, shard_id=SHARD))
    data += b"\x42" + bytes([len(sstable)]) + sstable + newer
    manifest = decode(data)
    assert manifest.unknown == newer
    assert manifest.sstables == (SsTable(1, "p", unknown=newer),)
    rewritten = encode_manifest(replace(manifest, version=2, last_seen=7))
    assert decode(rewritten, 2) == replace(manifest, version=2, last_seen=7)
    assert rewritten.count(newer) == 2


def test_a_field_is_set_replaced_and_removed_and_no_other_is_touched() -> None:
    manifest = Manifest(version=1, epoch=1, shard_id=SHARD, fields=(("bucket", b"1"),))
    assert manifest.claim_id is None
    owned = manifest.with_field(OWNER, b"s1").with_field(CLAIM_ID, b"c1").with_field(OWNER, b"s2")
    assert owned.fields == (("bucket", b"1"), (OWNER, b"s2"), (CLAIM_ID, b"c1"))
    assert owned.with_field(OWNER, None).with_field(CLAIM_ID, None) == manifest
    assert manifest.with_field("missing", None) == manifest


@pytest.mark.parametrize(
    ("epoch", "claim_id", "held"), [(4, "c1", True), (5, "c1", False), (3, "c1", False), (4, "c2", False)]
)
def test_a_claim_stands_by_its_id_and_its_epoch(epoch: int, claim_id: str, held: bool) -> None:
    assert FULL.held_by(epoch, claim_id) is held


def test_native_initial_manifests_have_epoch_0() -> None:
    """Native's initialize_shard writes one before anybody claims."""
    manifest = Manifest(version=1, epoch=0, shard_id=SHARD, fields=(("bucket", b"1"),))
    assert decode(encode_manifest(manifest)) == manifest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"not a manifest",
        V1[:-1],
        V1[:6],
        V1.replace(SHARD.bytes, bytes(16)),
        V1[:6] + b"\x5a\x02\x0a\x00",
        V1.replace(b"\x5a\x12\x0a\x10", b"\x5a\x11\x0a\x0f")[:-1],
        b"\x08\x02" + V1[2:],
        b"\x08\x00" + V1[2:],
        V1 + b"\x78\x02",
        V1 + b"\x78" + b"\xff" * 9 + b"\x01",
        V1[:4] + V1[6:],
        V1 + b"\x42\xff\xff\xff\xff\x0f",
        V1 + b"\x72\x80\x80\x80\x80\x80\x80\x80\x80\x7f",
        V1 + b"\x42\x04\x12\x02\xff\xfe",
        V1 + b"\x42\x00" * 100_000,
    ],
    ids=range(17),
)
def test_bytes_that_no_writer_wrote_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        decode(data)
    assert caught.value.shard == str(SHARD)
    assert caught.value.detail["version"] == 1


def test_a_manifest_beyond_all_measure_is_corrupt_before_it_is_parsed() -> None:
    with pytest.raises(Corrupt, match="too large"):
        decode(bytes(MAX_BYTES + 1))


SENSELESS: list[dict[str, Any]] = [
    {"version": 0},
    {"version": 2**64},
    {"epoch": -1},
    {"epoch": 2**64},
    {"epoch": 0},
    {"generation": 0},
    {"generation": 3},
    {"replay_after": -1},
    {"last_seen": 2**64},
    {"spec_id": 2**32},
    {"sstables": (SsTable(0, "a"),)},
    {"sstables": (SsTable(5, "a"),)},
    {"sstables": (SsTable(2, "a"), SsTable(2, "b"))},
    {"sstables": (SsTable(2, "a"), SsTable(1, "b"))},
    {"sstables": (SsTable(1, "a"), SsTable(2, "a"))},
    {"sstables": (SsTable(1, "a", physical_rows=-1),)},
    *(
        {"sstables": (SsTable(1, path),)}
        for path in ("", ".", "..", "wal", "manifest", "a/b", "/a", "a\\b", "a\0", "a\n")
    ),
    *({"sstables": (SsTable(1, path),)} for path in ("x" * 256, "\ud800")),
    {"fields": (("a", b"1"), ("a", b"2"))},
    {"fields": (("\ud800", b"1"),)},
    {"fields": ((CLAIM_ID, b"\xff"),)},
    {"fields": ((OWNER, b""),)},
]


@pytest.mark.parametrize("senseless", SENSELESS, ids=str)
def test_what_decoding_would_refuse_is_never_written(senseless: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        encode_manifest(replace(FULL, **senseless))


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({}, True),
        ({"epoch": 5, "replay_after": 21, "last_seen": 30, "generation": 6, "sstables": (), "sealed": False}, True),
        ({"version": 9}, False),
        ({"version": 11}, False),
        ({"epoch": 3}, False),
        ({"replay_after": 16}, False),
        ({"last_seen": 20}, False),
        ({"generation": 4}, False),
        ({"shard_id": UUID(int=1)}, False),
    ],
    ids=str,
)
def test_a_successor_never_goes_back(change: dict[str, Any], allowed: bool) -> None:
    new = replace(FULL, **{"version": 10} | change)
    if allowed:
        check_successor(FULL, new)
    else:
        with pytest.raises(InvalidInput) as caught:
            check_successor(FULL, new)
        assert (caught.value.shard, caught.value.stored_epoch) == (str(SHARD), 4)


# -- anything may be in the file -------------------------------------------------

u64 = st.integers(0, 2**64 - 1)
sizes = st.none() | u64
texts = st.text(st.characters(codec="utf-8"), max_size=6)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    generations = sorted(draw(st.sets(st.integers(1, 2**64 - 2), max_size=4)))
    return Manifest(
        version=1,
        epoch=draw(st.integers(1, 2**64 - 1)),
        replay_after=draw(u64),
        last_seen=draw(u64),
        generation=draw(st.integers(max(generations, default=0) + 1, 2**64 - 1)),
        sstables=tuple(SsTable(g, f"{g:08x}_gen", draw(sizes), draw(sizes), draw(sizes)) for g in generations),
        spec_id=draw(st.integers(0, 2**32 - 1)),
        shard_id=SHARD,
        fields=tuple(draw(st.dictionaries(texts, st.binary(max_size=6), max_size=3)).items()),
        sealed=draw(st.booleans()),
    )


def is_corrupt_or_sound(data: bytes) -> None:
    try:
        manifest = decode(data)
    except Corrupt:
        return
    assert manifest.shard_id == SHARD
    assert [sstable.generation for sstable in manifest.sstables] == sorted(
        {sstable.generation for sstable in manifest.sstables}
    )
    for name in (f.name for f in dataclasses.fields(manifest)):
        getattr(manifest, name)
    _ = manifest.claim_id, manifest.owner, manifest.write_id
    assert decode(encode_manifest(manifest)) == manifest


@settings(max_examples=300, deadline=None)
@given(manifests())
def test_every_sound_manifest_reads_back(manifest: Manifest) -> None:
    assert decode(encode_manifest(manifest)) == manifest


@settings(max_examples=800, deadline=None)
@given(manifests(), st.data())
def test_a_manifest_cut_anywhere_is_corrupt_or_sound(manifest: Manifest, data: st.DataObject) -> None:
    encoded = encode_manifest(manifest)
    is_corrupt_or_sound(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@settings(max_examples=1200, deadline=None)
@given(manifests(), st.data())
def test_a_manifest_with_flipped_bits_is_corrupt_or_sound(manifest: Manifest, data: st.DataObject) -> None:
    encoded = bytearray(encode_manifest(manifest))
    for bit in data.draw(st.lists(st.integers(0, len(encoded) * 8 - 1), min_size=1, max_size=3)):
        encoded[bit // 8] ^= 1 << bit % 8
    is_corrupt_or_sound(bytes(encoded))


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_are_corrupt_or_sound(junk: bytes, after_a_manifest: bool) -> None:
    is_corrupt_or_sound(V1 + junk if after_a_manifest else junk)


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 2**29 - 1), st.integers(0, 7), u64, st.binary(max_size=20))
def test_a_huge_length_is_corrupt_or_sound(field: int, wire_type: int, length: int, tail: bytes) -> None:
    is_corrupt_or_sound(V1 + varint(field << 3 | wire_type) + varint(length) + tail)
    is_corrupt_or_sound(V1 + varint((field % 16 or 8) << 3 | 2) + varint(length) + tail)


@pytest.mark.parametrize("encoded", [V1, encode_manifest(replace(FULL, version=1))], ids=["new", "full"])
def test_every_cut_and_every_single_bit_flip_is_corrupt_or_sound(encoded: bytes) -> None:
    for cut in range(len(encoded)):
        is_corrupt_or_sound(encoded[:cut])
    for bit in range(len(encoded) * 8):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        is_corrupt_or_sound(bytes(flipped))


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
