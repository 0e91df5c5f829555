import pytest

from ktitan.bench.record_reads import RecordReads
from ktitan.errors import IoError


def test_a_rate_over_files_of_which_one_is_too_small(tmp_path, monkeypatch):
    monkeypatch.setattr("ktitan.bench.record_reads.PROBE_BYTES", 1 << 20)
    for name, size in (("large", 300_000), ("small", 5000)):
        (tmp_path / name).write_bytes(b"x" * size)
    with RecordReads(sorted(tmp_path.iterdir()), 100_000) as reads:
        assert reads.record_bytes == 25 * 4096
        assert reads.possible and reads.rate() > 0
        assert "O_DIRECT" in reads.how
        (tmp_path / "large").write_bytes(b"")
        with pytest.raises(IoError, match="short"):
            reads.rate()
    with RecordReads([tmp_path / "small"], 100_000) as reads:
        assert not reads.possible
