"""The evaluation job: load, decode every prompt with the drafter's blocks, keep each answer, report.

Float32 unless asked otherwise: there speculative output is plain greedy token for token, and `check_greedy` says so
from the run itself. In bfloat16 rounding may part the two, which the report then shows.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dflashctl_remote.data.chat import ChatTokenizer, tokenizer_sha256
from dflashctl_remote.data.rows import BadRow, Row, read_prompts
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.drafter.checkpoint import load_drafter, read_config
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.session import DraftSession
from dflashctl_remote.evaluate.answers import Answer, AnswerLog, finished_report
from dflashctl_remote.evaluate.causes import Gate, check_parity
from dflashctl_remote.evaluate.decode import plain_greedy, speculative_greedy
from dflashctl_remote.evaluate.lookup import BigramTable, accepted_per_step, own_text_draft
from dflashctl_remote.evaluate.parity import AsTrained, text_of
from dflashctl_remote.evaluate.repetition import repeated_share
from dflashctl_remote.evaluate.report import make_report
from dflashctl_remote.evaluate.template import TemplateFinding, compare_template
from dflashctl_remote.spec.drafter import DrafterConfig, TargetShape, check_fit
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.evaluate import EvalReport, EvalSpec
from dflashctl_remote.spec.events import Event, Notice, Progress
from dflashctl_remote.spec.manifest import MANIFEST_NAME, Kind, read_manifest, sha256_of, verify
from dflashctl_remote.spec.parity import Parity
from dflashctl_remote.target.load import Target, load_target, read_shape, resolve_device, target_sha256


@dataclass(frozen=True)
class _Prompt:
    row: Row
    ids: tuple[int, ...]


@dataclass(frozen=True)
class _Bench:
    """What every prompt is decoded with."""

    target: Target
    drafter: Drafter
    session: DraftSession
    config: DrafterConfig
    table: BigramTable | None
    max_new_tokens: int


def evaluate(spec: EvalSpec, emit: Callable[[Event], None]) -> EvalReport:
    """Write the evaluation folder that `spec` asks for; what an interrupted run of the same spec did is kept.

    Raises ArtifactIncomplete and ArtifactCorrupt for the checkpoint, BadInput if prompts, target, drafter or dataset
    do not fit one another.
    """
    about = _verified(spec, emit)
    config = read_config(Path(spec.checkpoint))
    shape = read_shape(spec.target)
    check_fit(config, shape)
    chat = ChatTokenizer.open(Path(spec.target))
    prompts = _read_prompts(spec, shape, chat)
    origin = _origin(spec, chat.template_sha256)
    finished = finished_report(Path(spec.output), origin)
    if finished is not None:
        emit(Notice(message=f"{spec.output} already holds this evaluation, complete; nothing was decoded"))
        return finished
    log = AnswerLog(Path(spec.output), origin)
    if log.was_dropped:
        emit(Notice(message=f"an unfinished evaluation with other settings at {spec.output}.partial was dropped"))
    if log.answers:
        emit(Notice(message=f"resuming: {len(log.answers)} of {len(prompts)} answers were already there"))
    bench = _set_up(spec, config, prompts, emit)
    for index, prompt in enumerate(prompts):
        if prompt.row.id not in log.answers:
            log.append(_answer(bench, prompt, is_checked=index < spec.check_greedy, is_kept=index < spec.check_parity))
        emit(Progress(what="evaluate", done=index + 1, total=len(prompts), unit="prompts"))
    answers = [log.answers[prompt.row.id] for prompt in prompts]
    parity = _parity(spec, about, bench, chat, prompts, answers) if spec.check_parity else None
    if parity is not None and parity.verdict in ("differ", "trained otherwise"):
        emit(Notice(message=f"parity: {parity.cause}: {parity.says}"))
    report = _report(spec, about, bench, answers, parity)
    if report.num_greedy_equal < report.num_greedy_checked:
        emit(
            Notice(
                message=f"{report.num_greedy_checked - report.num_greedy_equal} of {report.num_greedy_checked} answers "
                f"differ from plain greedy decoding in {report.dtype}"
            )
        )
    log.publish(report)
    return report


def _read_prompts(spec: EvalSpec, shape: TargetShape, chat: ChatTokenizer) -> list[_Prompt]:
    path = Path(spec.prompts)
    prompts: list[_Prompt] = []
    for row in read_prompts(path)[: spec.num_prompts]:
        try:
            ids = chat.prompt_ids(row.messages)
        except BadRow as problem:
            raise BadInput(f"{path}:{row.line}: {problem}") from problem
        if len(ids) + spec.max_new_tokens > shape.max_position_embeddings:
            raise BadInput(
                f"{path}:{row.line}: the prompt has {len(ids)} tokens and up to {spec.max_new_tokens} are to follow; "
                f"the target takes {shape.max_position_embeddings}",
                hint="lower max_new_tokens, or leave the prompt out",
            )
        prompts.append(_Prompt(row, tuple(ids)))
    return prompts


def _origin(spec: EvalSpec, template_sha256: str) -> dict[str, Any]:
    """All that the answers depend on, by content; a run resumes only where this is the same."""
    return {
        "checkpoint": _checkpoint_sha256(spec),
        "target": target_sha256(spec.target),
        "tokenizer": tokenizer_sha256(Path(spec.target)),
        "template": template_sha256,
        "prompts": sha256_of(Path(spec.prompts)),
        "lookup_dataset": _manifest_sha256(spec.lookup_dataset, "dataset") if spec.lookup_dataset else None,
        "num_prompts": spec.num_prompts,
        "max_new_tokens": spec.max_new_tokens,
        "check_greedy": spec.check_greedy,
        "check_parity": spec.check_parity,
        "device": spec.device,
        "dtype": spec.dtype,
    }


def _verified(spec: EvalSpec, emit: Callable[[Event], None]) -> dict[str, Any]:
    """What the checkpoint's manifest says of it, once every byte was compared; nothing of a public one without."""
    folder = Path(spec.checkpoint)
    if _has_manifest(spec):
        return verify(folder, "checkpoint").about
    emit(Notice(message=f"{folder} has no manifest: names and shapes of its tensors are checked, its bytes are not"))
    return {}


def _has_manifest(spec: EvalSpec) -> bool:
    """False only where there may be none."""
    return not spec.is_public or (Path(spec.checkpoint) / MANIFEST_NAME).is_file()


def _checkpoint_sha256(spec: EvalSpec) -> str:
    if _has_manifest(spec):
        return _manifest_sha256(spec.checkpoint, "checkpoint")
    return " ".join(sha256_of(Path(spec.checkpoint) / name) for name in ("config.json", "model.safetensors"))


def _manifest_sha256(folder: str, kind: Kind) -> str:
    read_manifest(Path(folder), kind)
    return sha256_of(Path(folder) / MANIFEST_NAME)


def _set_up(spec: EvalSpec, config: DrafterConfig, prompts: Sequence[_Prompt], emit: Callable[[Event], None]) -> _Bench:
    table: BigramTable | None = None
    if spec.lookup_dataset is not None:
        dataset = _open_dataset(spec, spec.lookup_dataset)
        table = BigramTable(_documents(dataset))
        num_seen = _num_in_dataset(dataset, prompts)
        if num_seen:
            emit(Notice(message=f"{num_seen} of {len(prompts)} prompts are in {spec.lookup_dataset}: not held out"))
    dtype = torch.bfloat16 if spec.dtype == "bfloat16" else torch.float32
    target = load_target(spec.target, device=resolve_device(spec.device), dtype=dtype)
    drafter = load_drafter(Path(spec.checkpoint), device=target.device, dtype=dtype).eval()
    return _Bench(target, drafter, DraftSession(drafter, target), config, table, spec.max_new_tokens)


def _open_dataset(spec: EvalSpec, folder: str) -> Dataset:
    dataset = Dataset.open(Path(folder))
    if dataset.info.tokenizer_sha256 != tokenizer_sha256(Path(spec.target)):
        raise BadInput(
            f"{folder} was made with the tokenizer of {dataset.info.target}, not of {spec.target}",
            hint="name a dataset of this target as lookup_dataset, or none",
        )
    return dataset


def _documents(dataset: Dataset) -> Iterator[tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.bool_]]]:
    for index in range(len(dataset)):
        document = dataset.tokens(index)
        yield document.input_ids, document.is_supervised


def _num_in_dataset(dataset: Dataset, prompts: Sequence[_Prompt]) -> int:
    """Prompts that are also, token for token, what precedes a document's first supervised token."""
    wanted = {prompt.ids for prompt in prompts}
    seen = {tuple(ids[: int(supervised.argmax())].tolist()) for ids, supervised in _documents(dataset)}
    return len(wanted & seen)


def _answer(bench: _Bench, prompt: _Prompt, *, is_checked: bool, is_kept: bool) -> Answer:
    start = time.monotonic()
    eos = frozenset(bench.target.shape.eos_token_ids)
    block_size = bench.config.block_size
    decoded = speculative_greedy(
        bench.target,
        bench.session,
        prompt.ids,
        tap_layers=bench.config.tap_layers,
        block_size=block_size,
        max_new_tokens=bench.max_new_tokens,
        eos_token_ids=eos,
    )
    is_equal: bool | None = None
    if is_checked:
        plain = plain_greedy(bench.target, prompt.ids, max_new_tokens=bench.max_new_tokens, eos_token_ids=eos)
        is_equal = plain == decoded.tokens
    lookup = accepted_per_step(own_text_draft, prompt.ids, decoded.tokens, block_size=block_size)
    table: list[int] | None = None
    if bench.table is not None:
        table = accepted_per_step(bench.table, prompt.ids, decoded.tokens, block_size=block_size)
    return Answer(
        id=prompt.row.id,
        category=prompt.row.category,
        num_prompt_tokens=len(prompt.ids),
        tokens=decoded.tokens,
        text=bench.target.tokenizer.decode(decoded.tokens, skip_special_tokens=True),
        accepted_per_step=decoded.accepted_per_step,
        drafts_per_step=decoded.drafts_per_step,
        proposals_per_step=decoded.proposals_per_step if is_kept else None,
        lookup_per_step=tuple(lookup),
        table_per_step=None if table is None else tuple(table),
        repeated_share=repeated_share([decoded.tokens]),
        is_greedy_equal=is_equal,
        wall_s=time.monotonic() - start,
    )


def _parity(
    spec: EvalSpec,
    about: dict[str, Any],
    bench: _Bench,
    chat: ChatTokenizer,
    prompts: Sequence[_Prompt],
    answers: Sequence[Answer],
) -> Parity:
    texts = [
        text_of(
            prompt.ids,
            answer.tokens,
            answer.accepted_per_step,
            answer.proposals_per_step,
            block_size=bench.config.block_size,
        )
        for prompt, answer in zip(prompts, answers, strict=True)
        if answer.proposals_per_step is not None
    ]
    path = AsTrained(bench.drafter, bench.target, bench.target, "eager")
    gate = Gate(bench.drafter, bench.target, bench.target, path)
    return check_parity(gate, texts, template=_template(spec, about, chat), tries_conventions=True)


def _template(spec: EvalSpec, about: dict[str, Any], chat: ChatTokenizer) -> TemplateFinding | None:
    """Against the dataset that is named, else the one that the checkpoint was trained on, if it lies here."""
    folder = spec.lookup_dataset or about.get("dataset")
    if folder is None or not (Path(folder) / MANIFEST_NAME).is_file():
        return None
    return compare_template(chat, Dataset.open(Path(folder)))


def _report(
    spec: EvalSpec, about: dict[str, Any], bench: _Bench, answers: Sequence[Answer], parity: Parity | None
) -> EvalReport:
    device = bench.target.device
    return make_report(
        answers,
        checkpoint=spec.checkpoint,
        step=about.get("step"),
        target=spec.target,
        block_size=bench.config.block_size,
        taps=bench.config.tap_layers,
        parity=parity,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=str(bench.target.dtype).removeprefix("torch."),
    )
