"""CRC-32C against the vectors of RFC 3720, B.4, and against a table in Python; both native paths."""

import numpy as np
import pytest

from ktitan.native import library
from ktitan.native.crc import crc32c

VECTORS = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    bytes.fromhex(
        "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
    ): 0xD9963A56,
    b"": 0,
    b"123456789": 0xE3069283,
}


def in_python(data, crc=0):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def by_tables(data, crc=0):
    array = np.frombuffer(data, np.uint8)
    return library.loaded().kt_crc32c_tables(crc, array.ctypes.data, array.nbytes) & 0xFFFFFFFF


@pytest.mark.parametrize("compute", [crc32c, by_tables, in_python])
def test_known_vectors(native, compute):
    assert {data: compute(data) for data in VECTORS} == VECTORS


def test_every_length_and_alignment(native, rng):
    data = rng.bytes(1 << 10)
    for length in range(0, 80):
        start = int(rng.integers(0, 64))
        piece = data[start : start + length]
        assert crc32c(piece) == by_tables(piece) == in_python(piece)


def test_lanes_and_what_is_left_of_them(native, rng):
    for length in (3 * 4096 - 1, 3 * 4096, 3 * 4096 + 7, 6 * 4096 + 12_345, *rng.integers(0, 100_000, 4)):
        data = rng.bytes(int(length))
        assert crc32c(data) == by_tables(data)
    assert crc32c(data) == in_python(data)


def test_a_checksum_goes_on_where_it_ended(native, rng):
    data = rng.bytes(50_000)
    cut = int(rng.integers(0, len(data)))
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
    assert crc32c(memoryview(bytearray(data))) == crc32c(np.frombuffer(data, np.uint8)) == crc32c(data)
