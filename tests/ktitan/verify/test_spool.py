"""The temporary file of the reference's logits."""

import errno
from collections import namedtuple

import pytest
import torch

from ktitan.errors import BudgetError, IoError
from ktitan.verify import spool
from ktitan.verify.spool import LogitSpool

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_come_back_bit_for_bit(tmp_path, dtype):
    logits = torch.randn(7, 5).to(dtype)
    store = LogitSpool(tmp_path, 7)
    store.write(logits[:3])
    store.write(logits[3:].T.contiguous().T)
    store.rewind()
    assert torch.equal(torch.cat([store.read(2), store.read(5)]), logits)
    with pytest.raises(IoError, match="end early"):
        store.read(1)
    assert list(tmp_path.iterdir()) == []
    store.close()


def test_a_drive_without_room_is_refused_before_a_byte_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(spool.shutil, "disk_usage", lambda folder: Usage(0, 0, 4 * 5 * 7 - 1))
    with pytest.raises(BudgetError, match="take 140 B, 139 B are free") as caught:
        LogitSpool(tmp_path, 7).write(torch.zeros(1, 5))
    assert "--spool" in caught.value.remedy


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(IoError, match="cannot be made: No such file"):
        LogitSpool(tmp_path / "nowhere", 7).write(torch.zeros(1, 5))


def test_a_drive_that_fills_up_while_it_is_written(tmp_path, monkeypatch):
    store = LogitSpool(tmp_path, 7)
    store.write(torch.zeros(1, 5))

    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    store._file.close()
    monkeypatch.setattr(store, "_file", Full())
    with pytest.raises(IoError, match="cannot be written: No space left"):
        store.write(torch.zeros(1, 5))
