import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Written apart, so that this file does not hold what it looks for.
BY_NAME = re.compile("|".join(["p" + "kill", "p" + "grep", "kill" + "all", r"kill -9 \$\("]))
SOURCES = ("dflashctl", "remote", "scripts", "templates", ".ci")
SUFFIXES = ("", ".py", ".sh", ".j2", ".html", ".service", ".yaml")


def test_nothing_finds_processes_by_a_pattern():
    files = [p for folder in SOURCES for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES]
    named = [p for p in [*files, ROOT / "Makefile"] if p.is_file() and BY_NAME.search(p.read_text("utf-8"))]
    assert not named


def test_what_hosts_run_is_looked_through():
    scripts = {path.name for folder in ("dflashctl", "remote") for path in (ROOT / folder).rglob("*.sh")}
    assert {"supervise.sh", "proc.sh", "launch.sh", "stop.sh"} <= scripts
