from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidInput
from headgate.shards import names

SHARD = UUID("0f0e0d0c-0b0a-0908-0706-050403020100")
ROOT = f"_mem_wal/{SHARD}"
ONE = "1" + "0" * 63


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "0" * 64),
        (1, ONE),
        (2, "01" + "0" * 62),
        (6, "011" + "0" * 61),
        (2**63, "0" * 63 + "1"),
        (2**64 - 1, "1" * 64),
    ],
)
def test_a_number_is_named_by_its_bits_in_reverse(number: int, name: str) -> None:
    assert names.rev64(number) == name
    assert names.wal_position(name + ".arrow") == number


@given(st.integers(0, 2**64 - 1))
def test_every_name_reads_back(number: int) -> None:
    assert names.wal_position(names.wal_key(SHARD, number)) == number
    assert names.manifest_version(names.manifest_key(SHARD, number)) == number


@pytest.mark.parametrize("number", [-1, 2**64, -(2**70)])
def test_a_number_that_is_no_uint64_has_no_name(number: int) -> None:
    for name in (names.rev64, lambda n: names.wal_key(SHARD, n), lambda n: names.manifest_key(SHARD, n)):
        with pytest.raises(InvalidInput):
            name(number)


@pytest.mark.parametrize("name", ["", "1", "0" * 63, "0" * 65, "2" * 64, "0" * 64 + "\n", "٠" * 64, ONE + ".arrow"])
def test_other_text_is_no_number(name: str) -> None:
    assert names.wal_position(name + ".arrow") is None
    assert names.manifest_version(name + ".binpb") is None


def test_keys_lie_where_native_looks_for_them() -> None:
    assert names.shard_folder(SHARD) == ROOT
    assert names.wal_folder(SHARD) == f"{ROOT}/wal"
    assert names.manifest_folder(SHARD) == f"{ROOT}/manifest"
    assert names.wal_key(SHARD, 1) == f"{ROOT}/wal/{ONE}.arrow"
    assert names.manifest_key(SHARD, 1) == f"{ROOT}/manifest/{ONE}.binpb"
    assert names.version_hint_key(SHARD) == f"{ROOT}/manifest/version_hint.json"


@pytest.mark.parametrize(
    "stray",
    [
        "{folder}/{bits}{suffix}.tmp.0123",
        "{folder}/.{bits}{suffix}",
        "{folder}/{bits}",
        "{folder}/{bits}{suffix}\n",
        "{folder}/{bits}.other",
        "{folder}/0{bits}{suffix}",
        "{folder}/{bits}{suffix}{suffix}",
        "{folder}/deeper/{bits}{suffix}",
        "elsewhere/{bits}{suffix}",
        "{folder}/{suffix}",
        "{folder}/",
        "",
    ],
)
def test_a_stray_is_neither_a_position_nor_a_version(stray: str) -> None:
    wal = stray.format(folder=f"{ROOT}/wal", bits=ONE, suffix=".arrow")
    manifest = stray.format(folder=f"{ROOT}/manifest", bits=ONE, suffix=".binpb")
    for key in (wal, manifest):
        assert names.wal_position(key) is None
        assert names.manifest_version(key) is None


def test_a_bare_file_name_is_enough() -> None:
    assert names.wal_position(f"{ONE}.arrow") == 1
    assert names.manifest_version(f"{ONE}.binpb") == 1
    assert names.manifest_version("version_hint.json") is None
