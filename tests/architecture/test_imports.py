import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "numpy", "safetensors", "triton", "fla"}


def loaded_by(code: str) -> set[str]:
    """Top-level modules in memory after the code ran in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'remote'}", "PATH": ""},
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_nothing_heavy():
    loaded = loaded_by(
        "from dflashctl.cli.app import main\n"
        "for words in (['--help'], ['train', 'start', '--help'], ['demo', '--help'], ['data', 'tokenize', '--help']):\n"
        "    assert main(words) == 0"
    )
    assert not loaded & HEAVY
    assert "click" not in loaded


def test_every_module_of_the_operators_side_loads_without_torch():
    walk = (
        "import importlib, pkgutil, dflashctl\n"
        "for found in pkgutil.walk_packages(dflashctl.__path__, 'dflashctl.'):\n"
        "    if not found.name.endswith('__main__') and '.assets' not in found.name:\n"
        "        importlib.import_module(found.name)"
    )
    assert not loaded_by(walk) & HEAVY


def test_every_spec_loads_without_torch():
    walk = (
        "import importlib, pkgutil, dflashctl_remote.spec as spec\n"
        "for found in pkgutil.walk_packages(spec.__path__, spec.__name__ + '.'):\n"
        "    importlib.import_module(found.name)"
    )
    assert not loaded_by(walk) & HEAVY
