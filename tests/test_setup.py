"""setup.py: the build switches, and what a wheel is called and holds."""

import importlib.util
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest

from ktitan.native.library import ISAS


@pytest.fixture(scope="module")
def build(repository):
    """setup.py as a module; it builds nothing when it is imported."""
    spec = importlib.util.spec_from_file_location("ktitan_setup", repository / "setup.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_unset_and_empty_switches_are_the_defaults(build):
    assert build.read_switches({}) == build.Switches()
    assert build.read_switches({"KTITAN_BUILD_ISA": " ", "KTITAN_THREADS": "7"}) == build.Switches()
    assert build.Switches().native == "auto" and build.Switches().isa == "avx512"


def test_every_switch_is_read(build):
    given = {"NATIVE": "1", "ISA": "AVX2", "JOBS": "3", "DEBUG": "1", "SANITIZE": "address, undefined"}
    chosen = build.read_switches({f"KTITAN_BUILD_{name}": value for name, value in given.items()})
    assert chosen == build.Switches("1", "avx2", 3, True, ("address", "undefined"))


def test_all_wrong_switches_are_told_at_once(build):
    wrong = {"NATIVE": "yes", "ISA": "sse9", "JOBS": "0", "DEBUG": "on", "SANITIZE": "address,luck", "NATVE": "1"}
    with pytest.raises(SystemExit) as ended:
        build.read_switches({f"KTITAN_BUILD_{name}": value for name, value in wrong.items()})
    text = str(ended.value)
    assert all(f"KTITAN_BUILD_{name} is" in text for name in wrong)
    assert "'sse9'; it takes generic, avx2 or avx512" in text and "no switch; there are KTITAN_BUILD_NATIVE" in text


def test_switches_shape_the_compiler_calls(build, monkeypatch, tmp_path):
    calls = []

    def call(command):
        calls.append(command)
        if command[-2:-1] == ["-o"]:
            (tmp_path / command[-1]).touch()

    monkeypatch.setattr(build, "call", call)
    sources = ["a/unit_avx2.cpp", "a/unit_avx512.cpp", "a/unit_generic.cpp", "a/api.cpp"]

    def compiled(**switches):
        calls.clear()
        build.build_library(sources, tmp_path / "o", tmp_path / "x.so", build.Switches(**switches))
        *objects, link = calls
        named = {next(word for word in command if word.endswith(".cpp")): command for command in objects}
        return SimpleNamespace(of=named, link=link)

    usual = compiled()
    assert set(usual.of) == set(sources) and "-Wl,-z,defs" in usual.link
    assert "-mavx2" in usual.of["a/unit_avx2.cpp"] and "-mavx2" not in usual.of["a/api.cpp"]
    lower = compiled(isa="avx2")
    assert set(lower.of) == {*sources} - {"a/unit_avx512.cpp"}
    assert all(f"-DKT_HIGHEST_ISA={ISAS.index('avx2')}" in command for command in lower.of.values())
    checked = compiled(sanitize=("address", "undefined"))
    assert all("-fsanitize=address,undefined" in command for command in (*checked.of.values(), checked.link))
    assert "-Wl,-z,defs" not in checked.link
    assert all("-g" in command and "-Og" in command for command in compiled(debug=True).of.values())


def test_no_library_where_it_is_switched_off(build, tmp_path):
    with pytest.raises(build.BuildError, match="KTITAN_BUILD_NATIVE=0"):
        build.build_library([], tmp_path, tmp_path / "x.so", build.Switches(native="0"))


def test_levels_are_the_librarys(build):
    assert build.ISAS == ISAS


def run_setup(repository, folder, environment):
    """`setup.py bdist_wheel` with everything it writes in `folder`; PATH has no compiler."""
    words = ["-q", "egg_info", "--egg-base", folder, "build", "--build-base", folder / "build"]
    words += ["bdist_wheel", "--bdist-dir", folder / "bdist", "--dist-dir", folder / "dist"]
    command = [sys.executable, "setup.py", *map(str, words)]
    return subprocess.run(
        command, cwd=repository, capture_output=True, text=True, env={"PATH": str(folder), **environment}
    )


def test_a_wheel_without_a_compiler_is_for_any_platform(repository, tmp_path):
    done = run_setup(repository, tmp_path, {})
    assert done.returncode == 0, done.stderr
    assert "ktitan will compute with numba" in done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: true" in archive.read(info).decode()
        assert archive.read("ktitan/native/_cpu_build.txt").decode().startswith("no C++ compiler (g++: ")
    assert {"ktitan/py.typed", "ktitan/injection_rules/parts/experts.yaml", "ktitan/operators/norm.py"} <= names
    assert not any(name.endswith(".so") or "tests" in name.split("/") for name in names)


def test_native_1_insists_on_the_library(repository, tmp_path):
    done = run_setup(repository, tmp_path, {"KTITAN_BUILD_NATIVE": "1"})
    assert done.returncode != 0 and not list(tmp_path.glob("dist/*"))
    assert "KTITAN_BUILD_NATIVE=1, but the native CPU library cannot be built: no C++ compiler" in done.stderr
