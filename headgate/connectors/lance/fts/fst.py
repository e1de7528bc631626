"""The words of a full-text index and their numbers, in native Lance's format: an fst (of the Rust crate, version 3).

Looking up a word visits one node per byte, backwards through the stored bytes; nothing is decoded in advance.
"""

from __future__ import annotations

from headgate.errors import Corrupt

_VERSION = 3
_HEADER, _FOOTER = 16, 20
"""Bytes of the header (version and type) and the footer (number of words, address of the root, checksum)."""

_FREQUENT = b"te/oasripcnw.hlm-du012g=:bf3y5&_4v9678k%?xCDASFIBEjPTzRNM+LOqHG"
"""Frequent bytes: a node with a single transition stores such a byte as its number here, from 1 on."""

_INDEXED = 32
"""A node with more transitions has a lookup table of 256 bytes."""


class TokenMap:
    """Maps words to rows of the posting file. Immutable."""

    def __init__(self, data: bytes) -> None:
        """Raises Corrupt for invalid bytes."""
        if len(data) < _HEADER + _FOOTER or _number(data, 0, 8) != _VERSION:
            raise Corrupt("The word list of a full-text index has an unknown version.")
        self._data = data
        self._root = _number(data, len(data) - 12, 8)
        self.count = _number(data, len(data) - _FOOTER, 8)
        """Number of words."""
        self.nbytes = len(data)

    def get(self, word: str) -> int | None:
        """The number of a word, None if the index does not have it. Raises Corrupt."""
        try:
            return self._walk(word.encode())
        except IndexError:
            raise Corrupt("The word list of a full-text index is damaged.") from None

    def _walk(self, word: bytes) -> int | None:
        address, total = self._root, 0
        for byte in word:
            step = self._step(address, byte)
            if step is None:
                return None
            output, address = step
            total += output
        final = self._final(address)
        return None if final is None else total + final

    def _step(self, address: int, byte: int) -> tuple[int, int] | None:
        """The output and the target of a byte's transition; None if there is no such transition."""
        if address == 0:
            return None
        data, state = self._data, self._data[address]
        if state < 0x80:
            return self._step_of_many(address, byte)
        frequent = state & 0x3F
        at = address if frequent else address - 1
        if (_FREQUENT[frequent - 1] if frequent else data[at]) != byte:
            return None
        if state >= 0xC0:
            # The target is the node right before this one, and there is no output.
            return 0, at - 1
        at -= 1
        address_size, output_size = divmod(data[at], 16)
        end = at - address_size - output_size
        return _number(data, end, output_size), _target(data, at - address_size, address_size, end)

    def _step_of_many(self, address: int, byte: int) -> tuple[int, int] | None:
        data = self._data
        count, at = self._count(address)
        address_size, output_size = divmod(data[at], 16)
        if count > _INDEXED:
            at -= 256
            found = data[at + byte]
            if found >= count:
                return None
        else:
            place = data.find(byte, at - count, at)
            if place < 0:
                return None
            found = at - place - 1
        inputs = at - count
        outputs = inputs - count * address_size
        end = outputs - count * output_size - (output_size if self._is_final(address) else 0)
        target = _target(data, inputs - (found + 1) * address_size, address_size, end)
        return _number(data, outputs - (found + 1) * output_size, output_size), target

    def _final(self, address: int) -> int | None:
        """The final output of a word that ends here; None if none ends here."""
        if address == 0:
            return 0
        if not self._is_final(address):
            return None
        data = self._data
        count, at = self._count(address)
        address_size, output_size = divmod(data[at], 16)
        index = 256 if count > _INDEXED else 0
        start = at - index - count - count * address_size - (count + 1) * output_size
        return _number(data, start, output_size)

    def _is_final(self, address: int) -> bool:
        return self._data[address] >> 6 == 1

    def _count(self, address: int) -> tuple[int, int]:
        """The number of transitions of a node with many, and the position of its sizes."""
        count = self._data[address] & 0x3F
        if count:
            return count, address - 1
        count = self._data[address - 1]
        # A count of 1 would be stored above, so 1 here means 256, which does not fit into a byte.
        return (256 if count == 1 else count), address - 2


def _number(data: bytes, start: int, size: int) -> int:
    if start < 0:
        raise IndexError
    return int.from_bytes(data[start : start + size], "little")


def _target(data: bytes, start: int, size: int, end: int) -> int:
    """Addresses are stored as distances; 0 means the final node without transitions."""
    distance = _number(data, start, size)
    return end - distance if distance else 0
