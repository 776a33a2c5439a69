"""Online training end to end: loader, target, buffer, drafter and optimizer of a run, on random weights of real shapes.

    python scripts/bench_train/online.py --layout colocated --steps 12        on a GPU
    python scripts/bench_train/online.py --tiny                               the same code on a CPU
    ... --arms saving --warm-steps 6 --steps 20                                what one checkpoint costs beside training

Arms, one after the other in one process: stages in turns, stages in threads, and stages in threads with less memory.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "remote"), str(Path(__file__).resolve().parent)]

from random_target import make_target, target_shape  # noqa: E402

from dflashctl_remote.data.loader import BatchPlan  # noqa: E402
from dflashctl_remote.data.shards import Dataset, Document, ShardWriter  # noqa: E402
from dflashctl_remote.drafter.model import Drafter  # noqa: E402
from dflashctl_remote.kernels.autotune.install import install  # noqa: E402
from dflashctl_remote.spec.data import DatasetInfo  # noqa: E402
from dflashctl_remote.spec.drafter import resolve_drafter  # noqa: E402
from dflashctl_remote.spec.events import EventLog  # noqa: E402
from dflashctl_remote.spec.manifest import write_manifest  # noqa: E402
from dflashctl_remote.spec.placement import PlacementSpec  # noqa: E402
from dflashctl_remote.spec.train import BatchSpec, CheckpointSpec, OptimSpec, RunRecord, TrainSpec  # noqa: E402
from dflashctl_remote.trainer.assembly import draft, open_source, warm_up  # noqa: E402
from dflashctl_remote.trainer.checkpoint import TrainerState  # noqa: E402
from dflashctl_remote.trainer.devices import CopiedEnds, stage_devices  # noqa: E402
from dflashctl_remote.trainer.loop import Running, train_step  # noqa: E402
from dflashctl_remote.trainer.optim import MasterAdamW  # noqa: E402
from dflashctl_remote.trainer.order import Order  # noqa: E402
from dflashctl_remote.trainer.ranks import Ranks, join  # noqa: E402
from dflashctl_remote.trainer.replicas import Replicas  # noqa: E402
from dflashctl_remote.trainer.saving import Saving  # noqa: E402
from dflashctl_remote.trainer.setup import Parts  # noqa: E402
from dflashctl_remote.trainer.stop import StopRequest  # noqa: E402

GIB = 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--layout", default="colocated")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm-steps", type=int, default=2)
    parser.add_argument("--caps-gib", type=float, nargs="*", default=[])
    parser.add_argument("--arms", nargs="+", default=["in turns", "in threads"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.tokens, arguments.layers = 512, 8
    found = bench(arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    return 0


def bench(arguments: argparse.Namespace) -> list[dict[str, object]]:
    device = "cpu" if arguments.tiny else "cuda"
    ranks = join(arguments.ranks, device)
    spec = TrainSpec(
        target="random",
        dataset="random",
        num_steps=10_000,
        batch=BatchSpec(tokens_per_batch=arguments.tokens, block_ratio=arguments.ratio),
        optim=OptimSpec(accumulation=arguments.accumulation),
        checkpoint=CheckpointSpec(every_steps=10**6),
        placement=PlacementSpec(layout=arguments.layout, ranks=arguments.ranks),
        device=device,
    )
    found = []
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(Path(folder) / "dataset", arguments.tiny)
        (Path(folder) / "checkpoints").mkdir()
        parts = make_parts(spec, dataset, ranks, Path(folder), arguments)
        state = TrainerState(
            step=0, batch=0, epoch=0.0, loss=None, dtype="bfloat16", target_sha256="", dataset_sha256="", train=spec
        )
        began_s = time.perf_counter()
        install()
        warm_up(parts, state)
        tell(ranks, f"warm-up {time.perf_counter() - began_s:.1f} s")
        arms = [(arm, None) for arm in arguments.arms] + [("in threads", cap) for cap in arguments.caps_gib]
        for arm, cap in arms:
            row = measure(parts, state, arm, cap, arguments, Path(folder))
            found.append(row)
            tell(ranks, "  ".join(f"{key} {value}" for key, value in row.items()))
    ranks.close()
    return found


def measure(
    parts: Parts, state: TrainerState, arm: str, cap_gib: float | None, arguments: argparse.Namespace, folder: Path
) -> dict[str, object]:
    is_gpu = parts.device.type == "cuda"
    if is_gpu:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(parts.device).total_memory
        torch.cuda.set_per_process_memory_fraction(1.0 if cap_gib is None else cap_gib * GIB / total, parts.device)
        torch.cuda.reset_peak_memory_stats(parts.device)
    placement = parts.spec.placement
    if arm == "in turns":
        placement = placement.model_copy(update={"states_ahead": 0})
    train = parts.spec.model_copy(update={"placement": placement})
    parts = replace(parts, record=parts.record.model_copy(update={"train": train}))
    rates, shares, seconds = [], [], []
    events = EventLog(folder / "events.jsonl")
    with (
        StopRequest(folder) as stop,
        Saving(parts, events) as saving,
        Replicas(parts.drafters, draft(parts)) as replicas,
        open_source(parts, state.batch) as source,
    ):
        running = Running(parts, source, replicas, stop, saving)
        began_s = time.perf_counter()
        for step in range(arguments.warm_steps + arguments.steps):
            after = train_step(running, state, began_s)
            assert after is not None
            state, event = after
            if arm == "saving" and step == arguments.warm_steps:
                saving.save(state)
            seconds.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            if step >= arguments.warm_steps:
                rates.append(event.context_tokens_per_s)
                shares.append({stage.name: round(stage.busy, 2) for stage in event.stages})
    told: dict[str, object] = {}
    if arm == "saving":
        # The step after which it was saved holds the copy; the others share the machine with the writer.
        usual = statistics.median(seconds[1 : arguments.warm_steps])
        told["more_s_for_one_checkpoint"] = round(sum(seconds[arguments.warm_steps :]) - arguments.steps * usual, 2)
    return told | {
        "layout": placement.layout,
        "ranks": parts.ranks.size,
        "arm": arm,
        "cap_gib": cap_gib,
        "tokens_per_s": round(statistics.median(rates), 1),
        "fastest": round(max(rates), 1),
        "slowest": round(min(rates), 1),
        "block_ratio": round(event.block_ratio, 2),
        "peak_gib": round(event.peak_memory_bytes / GIB, 1),
        "limiting": event.limiting_stage,
        "busy": shares[-1],
        "loss": round(event.loss, 3),
    }


def make_parts(spec: TrainSpec, dataset: Dataset, ranks: Ranks, folder: Path, arguments: argparse.Namespace) -> Parts:
    on = stage_devices(spec, ranks)
    dtype = torch.float32 if arguments.tiny else torch.bfloat16
    targets = {
        where: make_target(where, dtype, num_layers=arguments.layers, is_tiny=arguments.tiny)
        for where in dict.fromkeys(on.targets)
    }
    target = targets[on.targets[0]]
    config = resolve_drafter(spec.drafter, target_shape(arguments.tiny, arguments.layers))
    with torch.device(on.drafters[0]):
        drafter = Drafter(config).to(dtype)
    for parameter in drafter.parameters():
        with torch.no_grad():
            parameter.normal_(0, 0.02) if parameter.ndim > 1 else parameter.fill_(1.0)
    plan = BatchPlan(
        dataset,
        tokens_per_batch=spec.batch.tokens_per_batch,
        max_length_tokens=spec.batch.max_length_tokens,
        seed=spec.seed,
    )
    others = [Drafter(config).to(device=where, dtype=dtype) for where in on.drafters[1:]]
    for other in others:
        other.load_state_dict(drafter.state_dict())
    return Parts(
        record=RunRecord(run_id="bench", created_at_s=0.0, bundle_sha="", train=spec),
        checkpoints=folder / "checkpoints",
        device=on.drafters[0],
        attention="eager" if arguments.tiny else "flex",
        targets=tuple(targets[where] for where in on.targets),
        ends=tuple(targets.get(where) or CopiedEnds(target, where) for where in on.drafters),
        plan=plan,
        num_anchors=spec.batch.num_anchors(config.block_size),
        drafters=(drafter, *others),
        optimizer=MasterAdamW(drafter, spec.optim),
        order=Order(spec.optim.accumulation, spec.placement.num_drafters, ranks.rank, ranks.size),
        ranks=ranks,
    )


def make_dataset(folder: Path, is_tiny: bool) -> Dataset:
    """Log-normal lengths of mean 2,068 and P90 4,200; three quarters of a document are supervised."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    mean = 100 if is_tiny else 2068
    lengths = np.clip(generator.lognormal(np.log(mean) - 0.31, 0.79, size=1500), 16, 2 * mean).astype(int)
    vocabulary = 900 if is_tiny else 248_000
    with ShardWriter(folder) as writer:
        for number, length in enumerate(lengths):
            is_supervised = np.arange(length) >= length // 4
            ids = generator.integers(0, vocabulary, size=length)
            writer.add(Document(ids, is_supervised, id=str(number)))
    info = DatasetInfo.model_construct(
        num_documents=writer.num_documents,
        num_tokens=writer.num_tokens,
        num_supervised=writer.num_supervised,
    )
    write_manifest(folder, "dataset", bundle_sha="", about={})
    shards = tuple(sorted({path.parent for path in folder.glob("shard-*/tokens.npy")}))
    return Dataset(folder, info, shards)


def tell(ranks: Ranks, text: str) -> None:
    if ranks.is_first:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
