"""Where the stored pieces of a record go in its slot."""

import random

from ktitan.formats import Span
from ktitan.tiers.record import PAGE_BYTES, lay_out, round_up


def brought(record, span, place):
    """Whether a read brings a byte range of a file to `place`."""
    shifts = [
        (one.span, place - one.at - (span.offset - one.span.offset), span.offset - one.span.offset)
        for one in record.extents
    ]
    return any(
        whole.file == span.file and shift == 0 and 0 <= start <= whole.nbytes - span.nbytes
        for whole, shift, start in shifts
    )


def test_every_part_is_whole_and_no_page_belongs_to_two_reads():
    generator = random.Random()
    for _ in range(300):
        parts = [
            [Span(f"f{generator.randrange(2)}", generator.randrange(1 << 20), generator.randrange(1, 40_000))]
            for _ in range(generator.randrange(1, 5))
        ]
        record = lay_out("r", parts)
        pages: set[int] = set()
        for extent in record.extents:
            assert extent.at % PAGE_BYTES == extent.span.offset % PAGE_BYTES
            mine = range(extent.at // PAGE_BYTES, round_up(extent.at + extent.span.nbytes) // PAGE_BYTES)
            assert not pages & set(mine)
            pages |= set(mine)
        assert record.slot_bytes == PAGE_BYTES * (max(pages) + 1)
        assert all(brought(record, spans[0], place) for spans, place in zip(parts, record.places, strict=True))


def test_neighbours_in_a_file_are_one_read():
    record = lay_out("r", [[Span("f", 100, 1000)], [Span("f", 1100, 500)], [Span("f", 1600 + 4096, 10)]])
    assert [(one.span.offset, one.span.nbytes, one.at) for one in record.extents] == [(100, 5606, 100)]
    assert record.places == (100, 1100, 5696)


def test_distant_pieces_are_reads_of_their_own():
    record = lay_out("r", [[Span("f", 100, 1000)], [Span("f", 1100 + 4097, 10)], [Span("g", 0, 10)]])
    assert len(record.extents) == 3 and record.places == (100, 4096 + 5197 % 4096, 8192)


def test_a_matrix_over_two_files_stays_whole_only_at_page_edges():
    whole = lay_out("r", [[Span("a", 64, 4032), Span("b", 8192, 100)]])
    assert whole.places == (64,) and [one.at for one in whole.extents] == [64, 4096]
    assert lay_out("r", [[Span("a", 64, 4000), Span("b", 8192, 100)]]) is None
    assert lay_out("r", [[Span("a", 64, 4032), Span("b", 8193, 100)]]) is None
