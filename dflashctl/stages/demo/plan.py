"""The demo as a list of command lines of our own, and the run.yaml that they share. Pure.

All sizes that decide how long it takes stand here.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflashctl.config.load import Override, Tree, with_override
from dflashctl.errors import ConfigError
from dflashctl.stages.demo.target import TargetFacts

RUN_ID = "demo"
SERVER = "demo"
NUM_STEPS = 1500
NUM_EVAL_PROMPTS = 20
NUM_GENERATE_PROMPTS = 400
"""Of a target that is not the embedded one, whose own answers have to be made first."""
MAX_NEW_TOKENS = 96
MAX_LENGTH_TOKENS = 512
TOKENS_PER_BATCH = 512
BLOCK_RATIO = 1.0
LEARNING_RATE = 2e-3

DRAFTER: dict[str, Any] = {
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
    "block_size": 8,
}
MIN_LAYERS_FOR_EVEN_TAPS = 8
"""Below, the even-spacing rule of five taps would name a layer twice: all layers but the last are tapped."""


@dataclass(frozen=True)
class DemoStage:
    title: str
    """What it does, in a sentence."""
    command: tuple[str, ...]
    """Arguments of dflashctl."""
    done_when: Path | None
    """A file that is written last: there, the stage is complete. None: it is run each time."""
    resume: tuple[str, ...] | None = None
    """The command instead, where `resume_when` is there: the stage was broken off."""
    resume_when: Path | None = None

    @property
    def name(self) -> str:
        return " ".join(itertools.takewhile(lambda word: not word.startswith("-"), self.command[:2]))

    @property
    def is_done(self) -> bool:
        return self.done_when is not None and self.done_when.is_file()

    @property
    def next_command(self) -> tuple[str, ...]:
        if self.resume is not None and self.resume_when is not None and self.resume_when.is_file():
            return self.resume
        return self.command


@dataclass(frozen=True)
class DemoSettings:
    target: Path
    target_facts: TargetFacts
    workdir: Path
    prompts: Path
    """Held out: measured on, never trained on."""
    num_prompts: int
    num_steps: int
    responses: Path | None
    """The target's own answers, shipped; None: they are generated first."""
    train_prompts: Path
    """Answered by the target if there are no responses."""
    overrides: tuple[Override, ...] = ()
    """On top of the demo's run.yaml."""


@dataclass(frozen=True)
class DemoPlan:
    settings: DemoSettings
    run_file: Path
    run_yaml: dict[str, Any]
    num_steps: int
    stages: tuple[DemoStage, ...]
    before: Path
    after: Path
    """Folders of the two evaluations."""
    benchmark: Path
    """Folder of the benchmark of the served drafter."""

    @property
    def report_path(self) -> Path:
        return self.settings.workdir / "demo.json"

    @property
    def run_folder(self) -> Path:
        return self.settings.workdir / "runs" / RUN_ID


def plan_demo(settings: DemoSettings) -> DemoPlan:
    """Raises ConfigError if an override makes no sense of train.num_steps."""
    work = settings.workdir
    run_file = work / "run.yaml"
    shared = ("--config", str(run_file), "--workdir", str(work))
    dataset = work / "dataset"
    inspected = work / "inspected.json"
    run_folder = work / "runs" / RUN_ID
    before, after = work / "evaluations" / "before", work / "evaluations" / "after"
    benchmark = work / "benchmarks" / SERVER
    measured = benchmark / "run.json"
    run_yaml = _run_yaml(settings, dataset, after)
    num_steps = run_yaml["train"]["num_steps"]
    if not isinstance(num_steps, int) or num_steps < 1:
        raise ConfigError(f"train.num_steps is {num_steps!r}, wanted a positive integer")
    last = run_folder / "checkpoints" / f"step-{num_steps:08d}"
    stages = [
        DemoStage(
            "text becomes tokens; what the assistant wrote is marked",
            ("data", "tokenize", *shared),
            dataset / "manifest.json",
        ),
        DemoStage(
            "what is trained on, and what is only context",
            ("data", "inspect", str(dataset), "--workdir", str(work), "--output", str(inspected)),
            inspected,
        ),
        DemoStage(
            "a drafter learns to guess blocks of the target's own words",
            ("train", "start", *shared, "--run-id", RUN_ID),
            last / "manifest.json",
            resume=("train", "resume", RUN_ID, "--workdir", str(work)),
            resume_when=run_folder / "run.json",
        ),
        *(
            DemoStage(
                f"acceptance {when} training, by free-running decode of held-out prompts",
                ("eval", "run", *shared, "--checkpoint", checkpoint, "--output", str(folder)),
                folder / "manifest.json",
            )
            for when, checkpoint, folder in (
                ("before", f"{RUN_ID}@0", before),
                ("after", f"{RUN_ID}@latest", after),
            )
        ),
        DemoStage(
            "a server with the drafter, proven before it is called ready",
            ("deploy", "up", *shared, "--server", SERVER),
            measured,
        ),
        DemoStage(
            "the same prompts with and without the drafter, over HTTP",
            ("bench", *shared, "--server", SERVER, "--output", str(benchmark)),
            measured,
        ),
        DemoStage("what is known now, and from where", ("status", "--workdir", str(work)), None),
        DemoStage(
            "the server ends, and nothing of it is left",
            ("deploy", "down", "--workdir", str(work), "--server", SERVER),
            None,
        ),
    ]
    if settings.responses is None:
        stages.insert(
            0,
            DemoStage(
                "the target answers prompts: its drafter learns from its own words",
                ("data", "generate", *shared),
                work / "responses.jsonl",
            ),
        )
    return DemoPlan(settings, run_file, run_yaml, num_steps, tuple(stages), before, after, benchmark)


def _run_yaml(settings: DemoSettings, dataset: Path, after: Path) -> dict[str, Any]:
    target = str(settings.target)
    responses = settings.responses or settings.workdir / "responses.jsonl"
    data: dict[str, Any] = {
        "tokenize": {
            "target": target,
            "input": str(responses),
            "output": str(dataset),
            "max_length_tokens": MAX_LENGTH_TOKENS,
        }
    }
    if settings.responses is None:
        data["generate"] = {
            "target": target,
            "prompts": str(settings.train_prompts),
            "output": str(responses),
            "max_new_tokens": MAX_NEW_TOKENS,
        }
    drafter = dict(DRAFTER)
    facts = settings.target_facts
    if facts.num_layers < MIN_LAYERS_FOR_EVEN_TAPS:
        drafter["tap_layers"] = list(range(max(1, facts.num_layers - 1)))
    if facts.mask_token_id is not None:
        drafter["mask_token_id"] = facts.mask_token_id
    values: dict[str, Any] = {
        "data": data,
        "train": {
            "target": target,
            "dataset": str(dataset),
            "num_steps": settings.num_steps,
            "drafter": drafter,
            "optim": {"learning_rate": LEARNING_RATE},
            "batch": {
                "tokens_per_batch": TOKENS_PER_BATCH,
                "block_ratio": BLOCK_RATIO,
                "max_length_tokens": MAX_LENGTH_TOKENS,
            },
            "checkpoint": {"every_steps": max(1, settings.num_steps // 3), "keep": 2},
            # Short: the demo evaluates before and after, on more prompts.
            "validation": {"num_rows": 2, "num_prompts": 4, "max_new_tokens": 48},
        },
        "evaluate": {
            "target": target,
            "checkpoint": f"{RUN_ID}@latest",
            "output": str(after),
            "prompts": str(settings.prompts),
            "num_prompts": settings.num_prompts,
            "max_new_tokens": MAX_NEW_TOKENS,
            "lookup_dataset": str(dataset),
        },
    }
    values["deploy"] = {"name": SERVER, "target": target, "drafter": f"{RUN_ID}@latest", "port": 0}
    values["bench"] = {
        "server": SERVER,
        "prompts": str(settings.prompts),
        "num_prompts": settings.num_prompts,
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    if settings.responses is not None:
        # On one thread the embedded target decoded faster than on two that slept at every wait (28 s, not 46 s).
        values["evaluate"]["num_threads"] = 1
        values["deploy"]["options"] = {"num_threads": 1}
    tree = Tree(values)
    for override in settings.overrides:
        tree = with_override(tree, override)
    return tree.values
