"""Fuzz: 10,000 damaged entries of ours and 3,000 of native's, decoded in a process with limited memory; and every
single truncation and flip.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headgate.errors import Corrupt
from headgate.shards.wal.decoder import decode_entry
from tests.shards.wal import fuzz as entry_fuzz
from tests.support.network import seed_of_run


def fuzz(kind: str, cases: int) -> dict[str, int]:
    """Outcomes by name. A failure prints the seed and the command that repeats it."""
    seed = seed_of_run(os.environ.get("HEADGATE_SEED"))
    print(f"HEADGATE_SEED={seed}")
    command = [sys.executable, "-m", entry_fuzz.__name__, kind, str(seed), str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    told = f"replay with HEADGATE_SEED={seed}, or: {' '.join(command[1:])}"
    assert done.returncode == 0, f"{told}\nexit {done.returncode}\n{done.stderr[-3000:]}"
    return {name: int(count) for name, _, count in (word.partition("=") for word in done.stdout.split())}


def test_ten_thousand_damaged_entries_of_ours_are_corrupt_and_nothing_else() -> None:
    outcomes = fuzz("ours", 10_000)
    assert set(outcomes) <= {"corrupt", "unchanged"}
    assert outcomes["corrupt"] > 8500


def test_three_thousand_damaged_entries_of_native_are_corrupt_or_valid_arrow() -> None:
    """A flipped value cannot be seen there; that it is decoded, and no crash, is all that is promised."""
    outcomes = fuzz("native", 3000)
    assert set(outcomes) <= {"corrupt", "decoded", "unchanged"}
    assert outcomes["corrupt"] > 1000
    assert outcomes["decoded"] > 10


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["ours", "native"])
def test_a_million_damaged_entries(kind: str) -> None:
    assert fuzz(kind, 1_000_000)["corrupt"] > 0


def test_one_of_our_entries_cut_at_any_byte_is_corrupt() -> None:
    for data in (entry_fuzz.our_entries()[0], entry_fuzz.our_entries()[2]):
        for length in range(len(data)):
            with pytest.raises(Corrupt):
                decode_entry(memoryview(data)[:length])


def test_one_of_our_entries_with_any_bit_flipped_is_corrupt() -> None:
    for original in (entry_fuzz.our_entries()[0], entry_fuzz.our_entries()[1]):
        data = bytearray(original)
        for at in range(len(data)):
            for bit in range(8):
                data[at] ^= 1 << bit
                with pytest.raises(Corrupt):
                    decode_entry(memoryview(bytes(data)))
                data[at] ^= 1 << bit


@pytest.mark.parametrize("length", [64, 256, 512, 1024])
def test_one_of_our_entries_with_any_stretch_of_zeros_is_corrupt(length: int) -> None:
    """Sectors that were lost may wipe out all of our tags; what is left must not pass for one of native's."""
    for original in (entry_fuzz.our_entries()[0], entry_fuzz.our_entries()[1], entry_fuzz.our_entries()[4]):
        for at in range(0, len(original), 8):
            data = bytearray(original)
            data[at : at + length] = bytes(min(length, len(data) - at))
            if bytes(data) != original:
                with pytest.raises(Corrupt):
                    decode_entry(memoryview(bytes(data)))
