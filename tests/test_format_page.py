"""docs/formats.md is what docs/make_formats.py makes of the tables, and the files that it names are read or refused."""

import importlib.util
import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from ktitan.errors import FormatError
from ktitan.formats.plain import PLAIN_DTYPES
from ktitan.weights.opening import open_source


@pytest.fixture(scope="module")
def maker(repository):
    spec = importlib.util.spec_from_file_location("make_formats", repository / "docs" / "make_formats.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tables_say(maker, repository):
    assert (repository / "docs" / "formats.md").read_text("utf-8") == maker.make_page(), "run: make docs"


@pytest.mark.parametrize("name", PLAIN_DTYPES)
def test_every_dtype_of_the_page_is_read(tmp_path, name):
    numbers = torch.tensor([[1.0, 2.0], [0.5, 1.0]])
    stored = numbers.to(PLAIN_DTYPES[name])
    save_file({"a": stored}, tmp_path / "model.safetensors")
    out = torch.empty(2, 2)
    open_source(tmp_path).read_into("a", out)
    assert torch.equal(out, stored.float())


def test_every_refused_dtype_of_the_page_is_refused(maker, tmp_path):
    bits = {"C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
    for name in maker.REFUSED:
        size = 8 * bits[name] // 8
        header = json.dumps({"a": {"dtype": name, "shape": [8], "data_offsets": [0, size]}}).encode()
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * size)
        with pytest.raises(FormatError, match=name.lower()):
            open_source(path).read_into("a", torch.empty(8))
