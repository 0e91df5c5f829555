"""What is wrong with a native model is found, named and refused; doctor and --verify-weights read every byte."""

import json
import os
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import ktitan
from ktitan.api import native_faults
from ktitan.cli.main import app
from ktitan.convert import convert_model
from ktitan.doctor import gpu
from ktitan.errors import FormatError, KtitanError, UnsupportedError, WeightError
from ktitan.weights.native_format import digest, index_text
from ktitan.weights.opening import open_source


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    home = tmp_path_factory.mktemp("damage")
    convert_model(small[0], home / "native", stripes=[home / "second"])
    return home / "native"


@pytest.fixture
def model(whole, tmp_path):
    """A copy with real folders in place of the stripes' links, for a test to break."""
    shutil.copytree(whole, tmp_path / "native")
    return tmp_path / "native"


def data_files(model):
    return sorted(model.rglob("*.titan.safetensors"))


def flip(path, offset, bit=0):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def edit_index(model, change):
    """Change the index as one would who also corrects its checksum."""
    values = json.loads((model / "model.ktitan.json").read_text())
    values.pop("sha256")
    change(values)
    (model / "model.ktitan.json").write_bytes(index_text(values))


def edit_header(file, change):
    """Rewrite a header in its place, and its checksum in the index."""
    model = file.parent if (file.parent / "model.ktitan.json").exists() else file.parent.parent
    raw = bytearray(file.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= length
    raw[8 : 8 + length] = text.ljust(length)
    file.write_bytes(raw)
    name = str(file.relative_to(model))

    def sign(values):
        entry = next(entry for entry in values["files"] if entry["name"] == name)
        entry["header_sha256"] = digest(bytes(raw[: 8 + length]))

    edit_index(model, sign)


def data_start(path):
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_a_sound_model_has_no_faults(model):
    count, faults = native_faults(model)
    assert count > 10 and faults == []
    ktitan.load(model, device="cpu", verify_weights=True)


def test_a_bit_anywhere_in_the_data_is_found_and_named(model):
    rng = np.random.default_rng()
    for file in data_files(model):
        start, size = data_start(file), file.stat().st_size
        for offset in {start, size - 1, *map(int, rng.integers(start, size, 3))}:
            bit = int(rng.integers(0, 8))
            flip(file, offset, bit)
            _, faults = native_faults(model)
            assert (
                len(faults) == 1
                and faults[0].where == str(file)
                and "record model" in faults[0].message.replace("record lm_head", "record model")
            )
            at = int(faults[0].message.split("at offset ")[1].split(")")[0])
            length = int(faults[0].message.split(" (")[1].split(" ")[0])
            assert at <= offset < at + length
            flip(file, offset, bit)
    flip(data_files(model)[0], size := data_start(data_files(model)[0]))
    with pytest.raises(FormatError, match="CRC-32C"):
        ktitan.load(model, device="cpu", verify_weights=True)
    assert size


def test_a_bit_anywhere_in_a_header_or_the_index_is_refused(model):
    rng = np.random.default_rng()
    files = [(file, data_start(file)) for file in data_files(model)]
    files.append((model / "model.ktitan.json", (model / "model.ktitan.json").stat().st_size))
    for file, end in files:
        for offset in {0, end - 1, *map(int, rng.integers(0, end, 12))}:
            bit = int(rng.integers(0, 8))
            flip(file, offset, bit)
            with pytest.raises((FormatError, UnsupportedError)) as caught:
                open_source(model)
            assert {fault.where for fault in caught.value.faults} == {str(file)}
            flip(file, offset, bit)
    open_source(model)


def test_doctor_says_a_line_a_fault(model, monkeypatch):
    monkeypatch.setattr(gpu, "probe_torch", lambda: {"cuda": None, "hip": None, "gpus": 0})
    good = CliRunner().invoke(app, ["doctor", str(model)])
    assert good.exit_code == 0 and "all with the checksums" in good.stdout
    first, second = data_files(model)[:2]
    flip(first, data_start(first) + 5)
    flip(second, data_start(second) + 5)
    bad = CliRunner().invoke(app, ["doctor", str(model), "--json"])
    lines = json.loads(bad.stdout)["native model"]
    assert bad.exit_code == 1 and [line["name"] for line in lines] == [first.name, second.name]
    assert all("record" in line["value"] and "offset" in line["value"] and line["remedy"] for line in lines)
    (model / "model.ktitan.json").unlink()
    assert CliRunner().invoke(app, ["doctor", str(model)]).exit_code == 1


@pytest.mark.parametrize("command", ["chat", "verify"])
def test_other_sources_carry_no_checksums(small, command):
    words = {"chat": ["-p", "x"], "verify": ["--text", str(small[0] / "config.json")]}[command]
    for source in small:
        result = CliRunner().invoke(app, [command, str(source), "--verify-weights", *words])
        assert result.exit_code == 2 and "no checksums" in result.output


def refused(model, kind, words):
    with pytest.raises(kind) as caught:
        open_source(model)
    assert words in str(caught.value), caught.value
    return caught.value


def test_another_layout_or_version_is_refused_by_name(model):
    edit_index(model, lambda index: index.update(layout="amx-tiles"))
    refused(model, UnsupportedError, "amx-tiles")
    edit_index(model, lambda index: index.update(layout="rows", version=7))
    refused(model, UnsupportedError, "version 7")
    edit_index(model, lambda index: index.update(version=1, format="other"))
    refused(model, FormatError, "'other'")
    edit_index(model, lambda index: index.update(format="titan-native"))
    open_source(model)
    file = data_files(model)[0]
    edit_header(file, lambda header: header["__metadata__"].update({"titan.layout": "zz"}))
    refused(model, UnsupportedError, "'zz'")


def test_files_that_are_not_there_or_cut(model):
    file = data_files(model)[1]
    file.rename(file.with_name("elsewhere"))
    assert str(file) in str(refused(model, WeightError, "missing"))
    file.with_name("elsewhere").rename(file)
    os.truncate(file, file.stat().st_size - 4096)
    refused(model, FormatError, str(file))
    os.truncate(file, 5)
    refused(model, FormatError, str(file))
    for path in data_files(model):
        path.unlink()
    error = refused(model, WeightError, "missing")
    assert len(error.faults) == len(json.loads((model / "model.ktitan.json").read_text())["files"])


def test_no_index_means_not_finished(model):
    (model / "model.ktitan.json").unlink()
    refused(model, WeightError, "not finished")
    (model / "convert.ktitan.json").write_text("{}")
    for file in data_files(model):
        file.unlink()
    assert "same ktitan convert again" in str(refused(model, WeightError, "not finished"))


ENDING = ".titan.safetensors"
LEAVING = ("../x", "/etc/x", "stripe-1/../../x", "a/b", "stripe-0/x", "stripe-01/x", "stripe-100/x", ".", "", "a//b")


@pytest.mark.parametrize("name", [*(stem + ENDING for stem in LEAVING), f"x{ENDING}\n", "x.safetensors"])
def test_names_that_leave_the_directory(model, name):
    edit_index(model, lambda index: index["files"][0].update(name=name))
    refused(model, FormatError, "files.0.name")


def test_links_and_strange_stripes(model, tmp_path):
    file = next(one for one in data_files(model) if one.parent == model)
    file.rename(tmp_path / "outside")
    file.symlink_to(tmp_path / "outside")
    refused(model, FormatError, "a link")
    file.unlink()
    os.mkfifo(file)
    refused(model, FormatError, "not a regular file")
    file.unlink()
    (tmp_path / "outside").rename(file)
    edit_index(model, lambda index: index.update(stripes=1))
    refused(model, FormatError, "there are 1 stripes")
    edit_index(model, lambda index: index.update(stripes=2))
    (model / "stripe-1").rename(tmp_path / "gone")
    refused(model, WeightError, "stripe is not there")
    (model / "stripe-1").symlink_to(tmp_path / "gone")
    open_source(model)


def parts_of(header):
    return json.loads(header["__metadata__"]["titan.parts"])


def with_parts(change):
    def edit(header):
        parts = parts_of(header)
        change(parts)
        header["__metadata__"]["titan.parts"] = json.dumps(parts, separators=(",", ":"))

    return edit


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_parts(lambda parts: parts[0][0].update(at=8)), "begins at byte 8"),
        (with_parts(lambda parts: parts[0][0].update(format="q9")), "'q9' is not known"),
        (with_parts(lambda parts: parts[0][0].update(rows=1)), "lacks rows"),
        (with_parts(lambda parts: parts[0][0].update(rows=9999)), "where it cannot be"),
        (with_parts(lambda parts: parts[0][0].update(first_row=1)), "do not follow"),
        (with_parts(lambda parts: parts[0][0].update(shape=[0, 1])), "do not follow"),
        (with_parts(lambda parts: parts[0][0].update(at=-64)), "greater than or equal to 0"),
        (with_parts(lambda parts: parts[0][0].update(rows="3")), "valid integer"),
        (with_parts(lambda parts: parts.clear()), "no such layout"),
        (lambda header: header["__metadata__"].update({"titan.records": "{}"}), "not its list of tensors"),
        (lambda header: header["__metadata__"].update({"titan.records": "[[["}), "not valid JSON"),
    ],
)
def test_headers_that_lie_with_right_checksums(model, change, words):
    file = next(one for one in data_files(model) if one.name.startswith("base") and one.parent == model)
    edit_header(file, change)
    refused(model, FormatError, words)


def test_an_expert_that_is_missing(families, tmp_path):
    convert_model(families / "mixtral", tmp_path / "native")
    file = tmp_path / "native/layer-00001.titan.safetensors"

    def rename(header):
        name = "model.layers.1.mlp.experts[2]"
        header["model.layers.1.mlp.experts[9]"] = header.pop(name)
        metadata = header["__metadata__"]
        metadata["titan.records"] = metadata["titan.records"].replace(name, "model.layers.1.mlp.experts[9]")

    edit_header(file, rename)
    with pytest.raises(KtitanError, match=r"expert 2 of 10 is missing"):
        ktitan.load(tmp_path / "native", device="cpu")
