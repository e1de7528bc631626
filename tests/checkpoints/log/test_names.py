from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoints.log.names import ROOT, list_streams, stream_folder
from headgate.connectors.objects.port import ObjectStore, checked_key
from headgate.errors import InvalidInput
from tests.support.logs import CLAIMS, batch, log

HOSTILE = [
    "../../x",
    "..",
    ".",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "%2e%2e",
    "x" * 10_000,
    "ü" * 5_000,
    "🛒 Bestellungen",
    " ",
    "CON",
    "x" * 120,
    "x" * 121,
]


@pytest.mark.parametrize("name", HOSTILE, ids=[repr(name[:12]) for name in HOSTILE])
def test_a_hostile_name_stays_in_a_folder_of_its_own(any_store: ObjectStore, name: str) -> None:
    opened = log(any_store, name).open("q", CLAIMS)
    opened.commit(batch(0, 0, 10, 1), {})
    assert log(any_store, name).read().head.ends == {("t", 0): 10}
    assert list_streams(any_store) == (name,)
    for info in any_store.list(""):
        assert info.key.startswith(ROOT)
        assert info.key.removeprefix(ROOT).count("/") == 2
        assert all(len(piece) <= 120 for piece in info.key.split("/"))


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_names_never_share_a_folder(one: str, other: str) -> None:
    folders: dict[str, str] = {}
    for name in (one, other, one * 50, other * 50):
        folder = stream_folder(name)
        assert checked_key(folder).removeprefix(ROOT).count("/") == 0
        assert folders.setdefault(folder, name) == name


def test_a_name_that_looks_like_a_cut_one_is_another() -> None:
    long = stream_folder("x" * 500).removeprefix(ROOT)
    assert stream_folder(long) != stream_folder("x" * 500)


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_a_name_that_no_store_can_hold_is_refused(store: ObjectStore, name: str) -> None:
    with pytest.raises(InvalidInput):
        log(store, name)
    assert list(store.list("")) == []


def test_streams_are_listed_by_their_names_and_strays_are_not(any_store: ObjectStore) -> None:
    assert list_streams(any_store) == ()
    for name in ("b", "a", "x" * 300):
        log(any_store, name).open("q", CLAIMS)
    any_store.put_if_absent(f"{ROOT}stray/notes.txt", b"hello")
    assert list_streams(any_store) == ("a", "b", "x" * 300)
