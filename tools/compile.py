"""Compile the hot path to machine code with mypyc: a wheel in dist/, and the same unpacked below
build/compiled, to be run or tested from there.

    python tools/compile.py
    PYTHONPATH=build/compiled python -m manyhands serve

The source is plain Python and stays complete without this.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from narrowing import find_narrowings
from native_source import (
    INDEX_MODULE,
    MOVED_JOB_MODULE,
    STORED_MODULE,
    VALUE_MODULES,
    VIEW_MODULE,
    prepare,
    value_names,
)

ROOT: Final = Path(__file__).parent.parent
WORK: Final = ROOT / "build" / "native"
SITE: Final = ROOT / "build" / "compiled"
DIST: Final = ROOT / "dist"

# Not modules that do little but read fields of structs, such as the counters in observe/: the
# interpreter is twice as fast at that.
COMPILED: Final = (
    *VALUE_MODULES,
    MOVED_JOB_MODULE,
    STORED_MODULE,
    VIEW_MODULE,
    INDEX_MODULE,
    "engine/*.py",
    "protocols/dwork/reports.py",
    "protocols/dwork/steals.py",
    "protocols/dwork/tasks.py",
    "protocols/gearman/admin.py",
    "protocols/gearman/shipped.py",
    "protocols/replies.py",
    "dispatch/clock.py",
    "dispatch/dispatcher.py",
    "protocols/dwork/listener.py",
    "dispatch/events.py",
    "dispatch/ids.py",
    "dispatch/delivery.py",
    "dispatch/sleepers.py",
    "dispatch/wakeups.py",
    "net/zeromq.py",
    "store/batch.py",
    "store/collector.py",
    "store/index/due.py",
    "store/index/keys.py",
    "store/index/leases.py",
    "store/index/namespaces.py",
    "store/sqlite/writer/packer.py",
    "store/index/ready.py",
    "store/index/retrying.py",
    "store/sqlite/rows.py",
    "store/index/tables.py",
    "protocols/gearman/codec.py",
    "net/zmtp.py",
)

# More optimisation takes the C compiler three times as long, for no measurable gain.
SETUP: Final = """
from mypyc.build import mypycify
from setuptools import find_packages, setup

setup(
    name={name!r},
    version={version!r},
    python_requires={python!r},
    install_requires={dependencies!r},
    extras_require={extras!r},
    entry_points={{"console_scripts": {scripts!r}}},
    package_dir={{"": "src"}},
    packages=find_packages("src"),
    package_data={{"": ["**/*"]}},
    ext_modules=mypycify({modules!r}, opt_level="1", debug_level="0", group_name="manyhands"),
)
"""


def write_setup(modules: Sequence[Path]) -> None:
    """Writes the setup.py that builds a wheel from the copy."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    text = (ROOT / "src" / "manyhands" / "__init__.py").read_text()
    version = re.search(r'__version__ = "(.*)"', text)
    assert version is not None
    setup = SETUP.format(
        name=project["name"],
        version=version[1],
        python=project["requires-python"],
        dependencies=[*project["dependencies"], "mypy-extensions"],
        extras={name: found for name, found in extras.items() if name != "dev"},
        scripts=[f"{name} = {found}" for name, found in project["scripts"].items()],
        modules=[str(path.relative_to(WORK)) for path in modules],
    )
    (WORK / "setup.py").write_text(setup)


def build() -> Path:
    """Builds the wheel."""
    made = WORK / "dist"
    command = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(made)]
    # Warnings about generated C code would be errors, and take long to compute.
    environment = dict(os.environ, MYPYPATH="src", CFLAGS=f"{os.environ.get('CFLAGS', '')} -w")
    done = subprocess.run(  # noqa: S603 - our own words
        command, cwd=WORK, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}\nThe source could not be compiled; see above.")
    (wheel,) = made.glob("*.whl")
    DIST.mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, DIST))


def main() -> None:
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which(os.environ.get("CC", "cc")) is None or not headers.exists():
        sys.exit("Compiling needs a C compiler and Python's headers (Debian: gcc, python3-dev).")
    shutil.rmtree(WORK, ignore_errors=True)
    package = WORK / "src" / "manyhands"
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "manyhands", package, ignore=unwanted)
    values = value_names(package)
    modules = prepare(package, COMPILED)
    print(f"compiling {len(modules)} modules, which takes about a minute", flush=True)
    write_setup(modules)
    wheel = build()
    if found := find_narrowings(WORK / "build" / "ops.txt", values):
        print(*found, sep="\n")
        sys.exit("Keep what was looked at in a variable; tools/narrowing.py says why.")
    shutil.rmtree(SITE, ignore_errors=True)
    with zipfile.ZipFile(wheel) as found:
        found.extractall(SITE)
    print(f"made {wheel.relative_to(ROOT)}; unpacked in {SITE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
