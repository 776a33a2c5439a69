import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_wheel_holds_both_packages_and_the_demo_target(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "dflashctl/cli/app.py",
        "dflashctl/assets/demo_target/config.json",
        "dflashctl/assets/demo_target/model.safetensors",
        "dflashctl/assets/demo_target/tokenizer.json",
        "dflashctl/assets/demo_data/prompts-heldout.jsonl",
        "dflashctl/operations/bundle.sh",
        "dflashctl/operations/requirements.txt",
        "dflashctl_remote/entry/train.py",
        "dflashctl_remote/supervisor/proc.sh",
        "dflashctl_remote/spec/train.py",
    } <= names
    assert any(name.startswith("dflashctl/assets/demo_data/responses-train.jsonl") for name in names)
