"""A wheel of one module, so that environments can be made without a network."""

import base64
import hashlib
import zipfile
from pathlib import Path


def write_wheel(folder: Path, version: str = "1.0") -> Path:
    """`tiny`, whose VALUE is its version."""
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny.py": f'VALUE = "{version}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items()]
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"])
    path = folder / f"tiny-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
