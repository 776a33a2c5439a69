"""How good a drafter is after six minutes of one GPU, ours against the package speculators: docs/quality.md.

    python scripts/quality prompts pack       here: prompts out of packages; the target in parts that travel
    python scripts/quality join               there: the parts together again
    python scripts/quality respond ours theirs evaluate report

Each phase leaves its result below --work, and one that is there already is not done again without --again.
"""

import argparse
import json
import platform
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "remote"), str(Path(__file__).resolve().parent)]

from settings import Settings, tiny  # noqa: E402

PHASES = ("prompts", "pack", "join", "respond", "ours", "theirs", "evaluate", "report")
_DONE_BY = {
    "prompts": "prompts-held-out.jsonl",
    "respond": "respond.json",
    "ours": "ours.json",
    "theirs": "theirs.json",
}


def main() -> int:
    arguments = _parsed()
    settings = tiny(Settings()) if arguments.tiny else Settings()
    overrides = json.loads(arguments.set)
    settings = Settings(**(asdict(settings) | overrides))
    settings = Settings(**(asdict(settings) | {"batch_sizes": tuple(settings.batch_sizes)}))
    arguments.work.mkdir(parents=True, exist_ok=True)
    for phase in arguments.phases:
        done = _DONE_BY.get(phase)
        if done is not None and (arguments.work / done).is_file() and not arguments.again:
            print(f"{phase}: {arguments.work / done} is there already", flush=True)
            continue
        began_s = time.monotonic()
        _run(phase, settings, arguments)
        print(f"{phase}: {time.monotonic() - began_s:.0f} s", flush=True)
    return 0


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/quality", description=__doc__.split("\n\n")[0])
    parser.add_argument("phases", nargs="+", choices=PHASES)
    parser.add_argument("--work", type=Path, default=Path(".e2e/quality"), help="folder of all results")
    parser.add_argument("--target", type=Path, default=Path(".e2e/smollm2"))
    parser.add_argument("--downloads", type=Path, default=Path(".e2e/downloads"), help="folder of downloaded packages")
    parser.add_argument("--parts", type=Path, default=Path(".e2e/parts"), help="of `pack` and `join`")
    parser.add_argument("--pack", nargs="+", default=None, help="paths to pack; default: target and prompts")
    parser.add_argument("--part-mib", type=float, default=48.0)
    parser.add_argument("--preset", type=int, default=6, help="of xz: 0 is quick")
    parser.add_argument("--tiny", action="store_true", help="seconds of each phase, on a CPU")
    parser.add_argument("--again", action="store_true", help="do a phase anew whose result is there")
    parser.add_argument("--set", default="{}", help='JSON of settings.py, as {"train_s": 120}')
    parser.add_argument("--ours", default="{}", help='JSON of the train section, as {"optim": {"learning_rate": 2e-3}}')
    parser.add_argument("--theirs", default="{}", help='JSON of the TrainConfig of speculators, as {"lr": 2e-3}')
    return parser.parse_args()


def _run(phase: str, settings: Settings, arguments: argparse.Namespace) -> None:
    work, target = arguments.work, arguments.target
    if phase == "prompts":
        from prompts import make_prompts

        print(make_prompts(work, arguments.downloads))
    elif phase == "pack":
        from parts import write_parts

        usual = [str(target), *(str(work / f"prompts-{name}.jsonl") for name in ("train", "held-out"))]
        part_bytes = int(arguments.part_mib * 2**20)
        names = write_parts(
            arguments.pack or usual, arguments.parts, root=Path(), part_bytes=part_bytes, preset=arguments.preset
        )
        print(f"pack: {', '.join(names)} and index.json in {arguments.parts}")
    elif phase == "join":
        from parts import join_parts

        print(f"join: {', '.join(join_parts(arguments.parts, root=Path()))}")
    elif phase == "respond":
        from respond import respond

        if arguments.again:
            shutil.rmtree(work / "answers", ignore_errors=True)
        print(json.dumps(respond(settings, target, work)))
    elif phase == "ours":
        from ours import train_ours

        _tell(train_ours(settings, target, work, json.loads(arguments.ours)))
    elif phase == "theirs":
        from theirs import train_theirs

        _tell(train_theirs(settings, target, work, json.loads(arguments.theirs)))
    elif phase == "evaluate":
        from evaluate import evaluate

        evaluate(settings, target, work)
    else:
        _report(settings, target, work)


def _tell(arm: dict[str, Any]) -> None:
    print(
        f"{arm['trainer']}: {arm['num_steps']} of {arm['planned_steps']} steps in {arm['seconds_s']:.0f} s, "
        f"loss {arm['loss']:.3f}, {arm['epochs']:.2f} epochs"
    )


def _report(settings: Settings, target: Path, work: Path) -> None:
    from lookup import with_table
    from report import compare, read_answers, write_report

    arms = {arm: json.loads((work / f"{arm}.json").read_text(encoding="utf-8")) for arm in ("ours", "theirs")}
    ours, theirs = (read_answers(work / "eval" / f"{arm}.jsonl") for arm in ("ours", "theirs"))
    ours, num_seen = with_table(ours, target, work, settings.block_size)
    found = {
        "figures": compare(ours, theirs, settings.block_size),
        "num_held_out_prompts_in_dataset": num_seen,
        "arms": arms,
        "data": json.loads((work / "respond.json").read_text(encoding="utf-8")),
        "settings": asdict(settings),
        "python": platform.python_version(),
    }
    print(write_report(work, found))


if __name__ == "__main__":
    sys.exit(main())
