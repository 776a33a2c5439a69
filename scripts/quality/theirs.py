"""The other arm: the package speculators 0.9.0 on the same tokens, by its public classes and its own defaults.

Its model, loss, optimizers (Muon and AdamW), learning rates, schedule, sampler of packed rows and clipping are its
own, and so are their defaults (TrainConfig). What is not: the drafter's shape, taps, block and mask token, which are
those of the other arm; all layers full attention, where its default is a window; hidden states, which come from the
target in this process in place of a server, just before each step; and that no loss is read back but each 20 s.

Its compilation of the whole forward pass ends in an assertion of dynamo with torch 2.11. The function that it
decorates is put back, and each layer, the attention and the block mask are compiled by themselves.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fit import steps_for, steps_per_s
from settings import Settings
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow, pack
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.drafter.checkpoint import save_drafter
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.spec.drafter import DrafterConfig, resolve_drafter
from dflashctl_remote.spec.manifest import write_json
from dflashctl_remote.target.load import Target, load_target

OVERTIME = 1.1
_TELL_EVERY_S = 20.0


def train_theirs(settings: Settings, target_folder: Path, work: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Write `work`/theirs/checkpoint and `work`/theirs.json; `changes` replace flat keys of its TrainConfig."""
    target = load_target(target_folder, device="auto", dtype="auto")
    config = resolve_drafter(settings.drafter(target_folder), target.shape)
    is_cuda = target.device.type == "cuda"
    run = _Run.of(settings, target, config, target_folder, changes)
    start = {name: value.clone() for name, value in run.trainable.items()}
    rows = _Rows(Dataset.open(work / "dataset"), settings.tokens_per_batch, run.arguments["seed"])

    ends_s = _train(run, rows, settings.measure_steps, None).ends_s
    num_steps = steps_for(settings.train_s, ends_s)
    print(f"theirs: {steps_per_s(ends_s):.2f} steps/s, so {num_steps} in {settings.train_s:.0f} s", flush=True)
    with torch.no_grad():
        for name, value in run.trainable.items():
            value.copy_(start[name])
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    trained = _train(run, rows, num_steps, settings.train_s * OVERTIME)

    _export(run, config, work / "theirs" / "checkpoint", target.dtype)
    found = {
        "trainer": "speculators 0.9.0",
        "num_steps": len(trained.ends_s),
        "planned_steps": num_steps,
        "seconds_s": trained.ends_s[-1] - trained.ends_s[0],
        "context_tokens": len(trained.ends_s) * settings.tokens_per_batch,
        "num_anchors": settings.num_anchors,
        "loss": trained.loss,
        "epochs": trained.epochs,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if is_cuda else 0,
        "settings": {name: run.arguments[name] for name in _TOLD},
    }
    write_json(work / "theirs.json", found)
    return found


_TOLD = (
    "optimizer", "lr", "weight_decay", "muon_lr", "muon_momentum", "muon_weight_decay", "muon_adjust_lr_fn",
    "scheduler_type", "loss_fn", "loss_implementation", "per_position_loss_weight", "dpace_alpha",
    "hidden_states_dtype", "max_anchors", "total_seq_len", "block_size", "num_layers", "draft_attn_impl", "seed",
)  # fmt: skip


@dataclass(frozen=True)
class _Run:
    target: Target
    config: DrafterConfig
    model: Any
    arguments: dict[str, Any]
    """Its TrainConfig, flat."""
    call: dict[str, Any]
    """What its model wants with each batch."""

    @property
    def trainable(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @classmethod
    def of(
        cls, settings: Settings, target: Target, config: DrafterConfig, folder: Path, changes: dict[str, Any]
    ) -> "_Run":
        from speculators.models.dflash import DFlashDraftModel
        from speculators.train.cli import create_transformer_layer_config, set_seed
        from speculators.train.config import TrainConfig

        is_cuda = target.device.type == "cuda"
        asked: dict[str, Any] = {
            "speculator_type": "dflash",
            "verifier_name_or_path": str(folder.resolve()),
            "num_layers": config.num_layers,
            "block_size": config.block_size,
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": [tap + 1 for tap in config.tap_layers],
            "draft_vocab_size": config.vocab_size,
            "max_anchors": settings.num_anchors,
            "total_seq_len": settings.tokens_per_batch,
            "full_attention_indices": list(range(config.num_layers)),
            "draft_attn_impl": "simple_flex_attention" if is_cuda else "eager",
            "loss_implementation": "fused" if is_cuda else "eager",
            "hidden_states_dtype": "bfloat16" if is_cuda else "float32",
        }
        arguments = TrainConfig.from_flat(asked | changes).flatten()
        set_seed(arguments["seed"])
        layers = create_transformer_layer_config(
            arguments["verifier_name_or_path"],
            config.num_layers,
            arguments["draft_arch"],
            arguments["draft_hidden_act"],
            arguments["sliding_window"],
            arguments["full_attention_indices"],
        )
        _put_plain_forward_back(DFlashDraftModel, is_cuda=is_cuda)
        model = DFlashDraftModel.from_training_args(verifier_config=layers, **arguments).to(target.device).float()
        model.train()
        if is_cuda:
            for layer in model.layers:
                layer.compile()
        run = cls(target, config, model, arguments, DFlashDraftModel.get_trainer_kwargs(**arguments)[0])
        wanted = {name: tuple(p.shape) for name, p in Drafter(config).named_parameters()}
        found = {name: tuple(p.shape) for name, p in run.trainable.items()}
        assert found == wanted, f"the drafters differ: {sorted(set(found.items()) ^ set(wanted.items()))[:4]}"
        return run

    def inputs(self, row: PackedRow) -> dict[str, Tensor]:
        """Taps, and the last layer's states before the final norm, as its loader gives them."""
        device, width = self.target.device, self.config.hidden_size
        last = self.config.num_target_layers - 1
        taps = self.config.tap_layers
        seen = self.target.states(row, taps if last in taps else (*taps, last)).taps_TF
        place = taps.index(last) if last in taps else len(taps)

        def of(values: Any) -> Tensor:
            return torch.from_numpy(values).to(device, non_blocking=True)[None]

        return {
            "hidden_states": seen[None, :, : len(taps) * width],
            "verifier_last_hidden_states": seen[None, :, place * width : (place + 1) * width],
            "input_ids": of(row.input_ids_T),
            "loss_mask": of(row.is_supervised_T),
            "document_ids": of(row.document_ids_T),
            "position_ids": of(row.positions_T),
        }


def _put_plain_forward_back(model_class: Any, *, is_cuda: bool) -> None:
    from speculators.models import attention
    from speculators.models.dflash import core

    model_class.forward = getattr(model_class.forward, "_torchdynamo_orig_callable", model_class.forward)
    if not is_cuda:
        return
    plain, compiled = attention.flex_attention, torch.compile(attention.flex_attention)

    def in_one_dtype(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
        """Newer releases of torch do that under autocast by themselves: norms with fp32 weights give fp32."""
        return compiled(query.to(value.dtype), key.to(value.dtype), value, **given)

    assert callable(plain)
    attention.flex_attention = in_one_dtype
    core._compiled_create_block_mask = _mask_maker(core)


def _mask_maker(core: Any) -> Callable[..., Any]:
    """Its compiled mask where dynamo bears it, else the plain one, and says so."""
    use = [core._compiled_create_block_mask]

    def make(*arguments: Any, **given: Any) -> Any:
        try:
            return use[0](*arguments, **given)
        except (RuntimeError, AssertionError) as error:
            if use[0] is core.create_block_mask:
                raise
            print(f"theirs: the block mask is not compiled ({type(error).__name__})", flush=True)
            use[0] = core.create_block_mask
            return use[0](*arguments, **given)

    return make


class _Rows:
    """Packed rows in the order of its own sampler, epoch after epoch."""

    def __init__(self, dataset: Dataset, num_tokens: int, seed: int) -> None:
        from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

        self._dataset = dataset
        self._num_tokens = num_tokens
        self._sampler = MultipackDistributedBatchSamplerV2(num_tokens, dataset.lengths, 1, 0, seed=seed)

    def __iter__(self) -> Iterator[tuple[float, PackedRow]]:
        """(epochs done with this row, row)."""
        epoch = 0
        while True:
            self._sampler.set_epoch(epoch)
            batches = list(self._sampler)
            for number, indices in enumerate(batches):
                documents = [self._dataset.tokens(int(i), max_tokens=self._num_tokens) for i in indices]
                yield epoch + (number + 1) / len(batches), pack(documents, self._num_tokens)
            epoch += 1


@dataclass(frozen=True)
class _Trained:
    ends_s: list[float]
    loss: float
    epochs: float


def _train(run: _Run, rows: _Rows, num_steps: int, limit_s: float | None) -> _Trained:
    """Its trainer's step: forward under autocast, backward, clipping at 1, optimizers, schedulers."""
    from speculators.train.optimizers import build_optimizers
    from speculators.train.trainer import TrainerConfig, _resolve_scheduler_steps
    from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

    names = set(TrainerConfig._fields) & set(run.arguments)
    chosen = {name: run.arguments[name] for name in names} | {"max_steps": num_steps, "num_epochs": 1}
    config = TrainerConfig(**chosen)
    optimizers = build_optimizers(run.model, config)
    warmup, total = _resolve_scheduler_steps(config, num_steps)
    makes = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}
    make = makes[config.scheduler_type]
    schedulers = [make(o, num_warmup_steps=warmup, num_training_steps=total) for o in optimizers]
    device, dtype = run.target.device, getattr(torch, run.arguments["hidden_states_dtype"])
    ends_s: list[float] = []
    epochs, told_s = 0.0, time.monotonic()
    loss = torch.zeros(())
    for done, row in rows:
        epochs = done
        inputs = run.inputs(row)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            _, loss, _ = run.model(**inputs, **run.call)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        is_last = len(ends_s) + 1 == num_steps
        if device.type == "cuda" and (is_last or not ends_s):
            torch.cuda.synchronize()
        ends_s.append(time.monotonic())
        passed_s = ends_s[-1] - ends_s[0]
        if ends_s[-1] - told_s > _TELL_EVERY_S:
            told_s = ends_s[-1]
            print(f"theirs: step {len(ends_s)} of {num_steps}, loss {loss.item():.3f}, {passed_s:.0f} s", flush=True)
        if is_last or (limit_s is not None and passed_s > limit_s):
            break
    return _Trained(ends_s, loss.item(), epochs)


def _export(run: _Run, config: DrafterConfig, folder: Path, dtype: torch.dtype) -> None:
    """In the layout that engines read, in the dtype of the target."""
    drafter = Drafter(config)
    drafter.load_state_dict({name: value.detach().cpu() for name, value in run.trainable.items()})
    save_drafter(drafter.to(dtype), folder)
