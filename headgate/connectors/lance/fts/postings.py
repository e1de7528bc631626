"""Decodes posting lists of a full-text index: which documents have a word, how often, and at which positions.

The layout is native Lance's for blocks of 128 documents (formats 2 and 3): full blocks are bit-packed in four lanes,
the rest are variable-length numbers. Decoding works on numpy arrays; damaged bytes raise Corrupt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import Corrupt

Numbers = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint8]

BLOCK = 128
"""Documents in a block; also the number of positions that are packed together."""

_LANES = 4

_SCORE = 4
"""Bytes of a block's best score, at its start. It uses the statistics of its own part, so it is ignored here."""


@dataclass(frozen=True)
class Postings:
    """The documents of one word, ascending, and how often each has it."""

    docs: Numbers
    counts: Numbers

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.docs.nbytes + self.counts.nbytes)


NONE = Postings(np.zeros(0, np.uint32), np.zeros(0, np.uint32))
"""The posting list of a word that no document has."""


def decode_postings(blocks: pa.LargeBinaryArray, length: int) -> Postings:
    """Decode a posting list of `length` documents from a row's blocks; all but the last are full."""
    data, bounds = _bytes_of(blocks)
    full, rest = divmod(length, BLOCK)
    if len(bounds) - 1 != full + bool(rest):
        raise Corrupt(f"A posting list of {length} documents has {len(bounds) - 1} blocks.")
    try:
        docs, counts = _full_blocks(data, bounds[: full + 1])
        tail = varints(data[bounds[full] + _SCORE : bounds[-1]]) if rest else np.zeros(0, np.uint32)
    except IndexError:
        raise Corrupt("A block of a posting list is cut off.") from None
    if len(tail) != 2 * rest:
        raise Corrupt(f"The last block of a posting list holds {len(tail)} numbers for {rest} documents.")
    tail_docs = np.cumsum(tail[:rest], dtype=np.uint32)
    return Postings(np.concatenate([docs, tail_docs]), np.concatenate([counts, tail[rest:]]))


def decode_positions(stream: Raw, block_starts: Offsets, counts: Numbers, wanted: Offsets) -> tuple[Offsets, Numbers]:
    """The positions of a word in the documents of the blocks `wanted`, as (index in the posting list, position).

    `counts` is the whole list's. `stream` has for each block the differences between the positions within each
    document: packs of 128 as far as they are full, then variable-length numbers.
    """
    ends = np.append(block_starts[1:], len(stream))
    first = wanted * BLOCK
    last = np.minimum(first + BLOCK, len(counts))
    places = _ranges(first, last)
    per_place = counts[places].astype(np.int64)
    sums = np.append(0, np.cumsum(counts, dtype=np.int64))
    totals = sums[last] - sums[first]
    starts = np.append(0, np.cumsum(totals))
    steps = np.zeros(starts[-1], np.uint32)
    try:
        at = _packed_steps(stream, block_starts[wanted], totals, starts[:-1], steps)
    except IndexError:
        raise Corrupt("The positions in a posting list are cut off.") from None
    rest = varints(stream[_ranges(at, ends[wanted])])
    slots = _ranges(starts[:-1] + totals // BLOCK * BLOCK, starts[1:])
    if len(rest) != len(slots):
        raise Corrupt(f"A posting list has {len(rest)} loose positions, expected {len(slots)}.")
    steps[slots] = rest
    return np.repeat(places, per_place), _summed_within(steps, per_place)


def varints(data: Raw) -> Numbers:
    """Decode numbers of seven bits per byte, lowest first; the eighth bit is set if another byte follows."""
    if not len(data):
        return np.zeros(0, np.uint32)
    ends = np.flatnonzero(data < 0x80)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise Corrupt("The last number of a posting list is cut off.")
    starts = np.append(0, ends[:-1] + 1)
    shift = 7 * (np.arange(len(data)) - np.repeat(starts, ends - starts + 1))
    if shift.max() > 28:
        raise Corrupt("A number in a posting list is too long.")
    values = (data & 0x7F).astype(np.uint64) << shift.astype(np.uint64)
    return np.add.reduceat(values, starts).astype(np.uint32)


def unpack(data: Raw, at: Offsets, width: int) -> Numbers:
    """Decode 128 numbers of `width` bits at each offset: four interleaved lanes, lowest bits first. One row each."""
    if width > 32:
        raise Corrupt(f"A posting list has an invalid bit width of {width}.")
    if not width:
        return np.zeros((len(at), BLOCK), np.uint32)
    words = data[at[:, None] + np.arange(4 * _LANES * width)].view("<u4").reshape(len(at), width, _LANES)
    mask = np.uint32((1 << width) - 1)
    out = np.empty((len(at), BLOCK // _LANES, _LANES), np.uint32)
    for i in range(BLOCK // _LANES):
        word, shift = divmod(i * width, 32)
        value = words[:, word, :] >> np.uint32(shift)
        if shift + width > 32:
            value = value | (words[:, word + 1, :] << np.uint32(32 - shift))
        out[:, i, :] = value & mask
    return out.reshape(len(at), BLOCK)


def _full_blocks(data: Raw, bounds: Offsets) -> tuple[Numbers, Numbers]:
    at = bounds[:-1] + _SCORE
    first = data[at[:, None] + np.arange(4)].view("<u4")
    steps, at = _unpacked(data, at + 4)
    counts, at = _unpacked(data, at)
    if not np.array_equal(at, bounds[1:]):
        raise Corrupt("A block of a posting list has the wrong size for its numbers.")
    docs = first + np.cumsum(steps, axis=1, dtype=np.uint32)
    return docs.reshape(-1), counts.reshape(-1)


def _packed_steps(stream: Raw, at: Offsets, totals: Offsets, starts: Offsets, steps: Numbers) -> Offsets:
    """Write the packed numbers into `steps`, one pack of every block at a time. Returns where each block's
    variable-length numbers begin."""
    at = at.copy()
    packs = totals // BLOCK
    for round_ in range(int(packs.max(initial=0))):
        these = np.flatnonzero(packs > round_)
        values, at[these] = _unpacked(stream, at[these])
        steps[(starts[these] + round_ * BLOCK)[:, None] + np.arange(BLOCK)] = values
    return at


def _unpacked(data: Raw, at: Offsets) -> tuple[Numbers, Offsets]:
    """Decode at each offset a width and 128 numbers. Returns the numbers, and where they end."""
    widths = data[at]
    out = np.empty((len(at), BLOCK), np.uint32)
    for width in np.unique(widths):
        these = np.flatnonzero(widths == width)
        out[these] = unpack(data, at[these] + 1, int(width))
    return out, at + 1 + 4 * _LANES * widths.astype(np.int64)


def _bytes_of(blocks: pa.LargeBinaryArray) -> tuple[Raw, Offsets]:
    offsets, values = blocks.buffers()[1:]
    bounds = np.frombuffer(offsets, np.int64)[blocks.offset : blocks.offset + len(blocks) + 1]
    return np.frombuffer(values, np.uint8)[: bounds[-1]] if values is not None else np.zeros(0, np.uint8), bounds


def _ranges(first: Offsets, last: Offsets) -> Offsets:
    """All numbers of the ranges [first, last), one range after the other."""
    sizes = last - first
    if (sizes < 0).any():
        raise Corrupt("The positions in a posting list overlap.")
    ends = np.cumsum(sizes)
    numbers: Offsets = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes - first, sizes)
    return numbers


def _summed_within(steps: Numbers, sizes: Offsets) -> Numbers:
    """Running sums that restart at each document."""
    running = np.cumsum(steps, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    before = np.where(starts > 0, running[np.maximum(starts - 1, 0)], 0) if len(running) else starts
    within: Numbers = (running - np.repeat(before, sizes)).astype(np.uint32)
    return within
