"""Maps the repository's folders to import names; everything else about the package stands in pyproject.toml."""

from setuptools import find_packages, setup

# Only the folders with generic names are mapped, so that `operators` and `injection_rules` install below `ktitan`.
MAPPED = {"operators": "ktitan.operators", "injection_rules": "ktitan.injection_rules"}


def packages_below(folder: str, name: str) -> list[str]:
    """`folder` and its subpackages under the import name `name`."""
    return [name, *(f"{name}.{package}" for package in find_packages(folder))]


setup(
    packages=[*packages_below("ktitan", "ktitan"), *(p for f, n in MAPPED.items() for p in packages_below(f, n))],
    package_dir={"ktitan": "ktitan", **{name: folder for folder, name in MAPPED.items()}},
    package_data={"ktitan.injection_rules": ["*.yaml", "parts/*.yaml"], "ktitan": ["py.typed"]},
)
