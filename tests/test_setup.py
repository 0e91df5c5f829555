"""setup.py: the build switches, and what a wheel is called and holds."""

import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from types import SimpleNamespace

import pytest

from ktitan.native import native_reason
from ktitan.native.library import ISAS, LIBRARY


def load(path):
    """A file outside the package as a module."""
    spec = importlib.util.spec_from_file_location(f"ktitan_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build(repository):
    """setup.py; it builds nothing when it is imported."""
    return load(repository / "setup.py")


@pytest.fixture(scope="module")
def check_wheel(repository):
    return load(repository / "tools" / "check_wheel.py")


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


def run_setup(repository, folder, environment, command=("build", "--build-base", "{}/b", "bdist_wheel", "-b", "{}/w")):
    """A command of setup.py with everything it writes in `folder`; PATH has no compiler."""
    words = ["-q", "egg_info", "--egg-base", str(folder), *(word.format(folder) for word in command)]
    variables = {"PATH": str(folder), **environment}
    done = [sys.executable, "setup.py", *words, "--dist-dir", str(folder / "dist")]
    return subprocess.run(done, cwd=repository, capture_output=True, text=True, env=variables, check=False)


@pytest.fixture(scope="module")
def pure_wheel(repository, tmp_path_factory):
    """A wheel that was built without a compiler, and what the build said."""
    folder = tmp_path_factory.mktemp("pure")
    done = run_setup(repository, folder, {})
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").iterdir()
    return wheel, done.stderr


def test_a_wheel_without_a_compiler_is_for_any_platform(pure_wheel):
    wheel, said = pure_wheel
    assert "ktitan will compute with numba" in said
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        (info,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: true" in archive.read(info).decode()
        assert archive.read("ktitan/native/_cpu_build.txt").decode().startswith("no C++ compiler (g++: ")


def test_what_is_wrong_with_a_wheel_is_told(check_wheel, pure_wheel, repository, tmp_path):
    assert set(check_wheel.content_faults(pure_wheel[0])) == {
        "ktitan/native/_cpu.so is missing",
        "ktitan/native/_cpu_build.txt does not belong into it",
        "its tag is not manylinux",
    }
    changed = tmp_path / "ktitan-1-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(pure_wheel[0]) as old, zipfile.ZipFile(changed, "w") as new:
        for name in set(old.namelist()) - {"ktitan/py.typed", "ktitan/native/_cpu_build.txt"}:
            new.writestr(name, old.read(name))
        new.writestr("tests/test_x.py", f"x = '{repository}/x'")
    assert set(check_wheel.content_faults(changed)) >= {
        "ktitan/native/_cpu.so is missing",
        "ktitan/py.typed is missing",
        "tests/test_x.py does not belong into it",
        f"tests/test_x.py names {repository}/",
    }


def test_a_library_that_lacks_a_unit_is_told(check_wheel, native_library):
    data = native_library.read_bytes()
    assert check_wheel.library_faults(data) == []
    assert check_wheel.library_faults(data.replace(b"kt_unit_avx2", b"kt_unit_none")) == [
        "the library has no unit avx2"
    ]


@pytest.fixture
def native_library():
    if native_reason() is not None:
        pytest.skip(f"the native library is {native_reason()}")
    return LIBRARY


def test_native_1_insists_on_the_library(repository, tmp_path):
    done = run_setup(repository, tmp_path, {"KTITAN_BUILD_NATIVE": "1"})
    assert done.returncode != 0 and not list(tmp_path.glob("dist/*"))
    assert "KTITAN_BUILD_NATIVE=1, but the native CPU library cannot be built: no C++ compiler" in done.stderr


def test_a_source_archive_has_what_a_build_needs(repository, tmp_path):
    done = run_setup(repository, tmp_path, {}, ["sdist"])
    assert done.returncode == 0, done.stderr
    (made,) = (tmp_path / "dist").iterdir()
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {*repository.glob("csrc/cpu/*.cpp"), *repository.glob("csrc/cpu/*.h"), *repository.glob("ktitan/**/*.py")}
    wanted |= {*repository.glob("operators/**/*.py"), *repository.glob("injection_rules/**/*.yaml")}
    assert {path.relative_to(repository).as_posix() for path in wanted} <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "ktitan/py.typed"} <= names
    assert not any(name.endswith((".so", "_cpu_build.txt")) for name in names)
