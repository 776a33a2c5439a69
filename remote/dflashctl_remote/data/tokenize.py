"""From a JSONL file of conversations to a dataset folder. Nothing of the folder is seen before all of it is there."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from os import getpid
from pathlib import Path
from typing import Any

from dflashctl_remote.data.chat import ChatTokenizer, TokenSequence, tokenizer_sha256
from dflashctl_remote.data.rows import BadRow, BadRows, Row, RowReader
from dflashctl_remote.data.shards import Dataset, Document, ShardWriter
from dflashctl_remote.spec.bundle import bundle_sha
from dflashctl_remote.spec.data import DatasetInfo, TokenizeSpec
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.manifest import MANIFEST_NAME, sha256_of, write_manifest

_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Tokenized:
    info: DatasetInfo
    was_up_to_date: bool
    """The folder already held exactly this; nothing was written."""
    notices: tuple[str, ...]
    """What a reader should know: rows left out, keys ignored."""


def tokenize(spec: TokenizeSpec, report: Callable[[int, int], None]) -> Tokenized:
    """Write the dataset that `spec` asks for; `report(done, total)` in bytes of the input.

    Raises BadInput: a bad row unless skipped, no row left, an output folder that holds something else.
    """
    source, output, target = Path(spec.input), Path(spec.output), Path(spec.target)
    bad = BadRows(source, skip=spec.skip_bad)
    reader = RowReader(source, bad)
    chat = ChatTokenizer.open(target)
    wanted: dict[str, Any] = {
        "input_sha256": sha256_of(source),
        "tokenizer_sha256": tokenizer_sha256(target),
        "template_sha256": chat.template_sha256,
        "max_length_tokens": spec.max_length_tokens,
    }
    existing = _existing(output, wanted, spec)
    if existing:
        return Tokenized(existing, True, (f"{output} is up to date: same input, tokenizer, template and cut",))
    aside = output.with_name(f"{output.name}.partial-{getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _make(aside)
        writer, num_truncated = _write(
            aside,
            _batches(reader),
            chat,
            spec.max_length_tokens,
            bad,
            lambda: report(reader.done_bytes, reader.total_bytes),
        )
        info = DatasetInfo(
            num_documents=writer.num_documents,
            num_tokens=writer.num_tokens,
            num_supervised_tokens=writer.num_supervised,
            num_skipped_rows=bad.count,
            num_truncated=num_truncated,
            max_document_tokens=writer.max_document_tokens,
            target=spec.target,
            **wanted,
        )
        if not info.num_documents:
            raise BadInput(f"expected conversations in {source}, found none to use ({bad.count} bad rows)")
        write_manifest(aside, "dataset", bundle_sha=bundle_sha(), about=info.model_dump())
        aside.rename(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Tokenized(info, False, _notices(reader, chat, bad))


def _existing(output: Path, wanted: dict[str, Any], spec: TokenizeSpec) -> DatasetInfo | None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    if not (output / MANIFEST_NAME).is_file():
        raise BadInput(
            f"wanted to write a dataset to {output}, found something there that is not a finished one",
            hint="give another --output, or remove it",
        )
    info = Dataset.open(output).info
    found = info.model_dump()
    differing = [name for name, value in wanted.items() if found[name] != value]
    if info.num_skipped_rows and not spec.skip_bad:
        differing.append(f"{info.num_skipped_rows} bad rows left out")
    if differing:
        raise BadInput(
            f"wanted to write a dataset to {output}, found a finished one that differs ({', '.join(differing)})",
            hint="give another --output, or remove it",
        )
    return info


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise BadInput(f"wanted to write a dataset into {folder.parent}, found: {error.strerror}") from error


def _batches(reader: RowReader) -> Iterator[list[Row]]:
    rows = reader.conversations()
    while batch := list(islice(rows, _ROWS_AT_ONCE)):
        yield batch


def _write(
    folder: Path,
    batches: Iterator[list[Row]],
    chat: ChatTokenizer,
    max_length: int,
    bad: BadRows,
    report: Callable[[], None],
) -> tuple[ShardWriter, int]:
    num_truncated = 0
    with ShardWriter(folder) as writer:
        for rows in batches:
            for row, sequences in zip(rows, chat.sequences(rows), strict=True):
                try:
                    documents, num_cut = _documents(row, sequences, max_length)
                except BadRow as problem:
                    bad.add(row.line, str(problem))
                    continue
                num_truncated += num_cut
                for document in documents:
                    writer.add(document)
            report()
    return writer, num_truncated


def _documents(row: Row, sequences: list[TokenSequence] | BadRow, max_length: int) -> tuple[list[Document], int]:
    """What is kept of a row, and how many of its sequences were cut or, with nothing supervised left, dropped."""
    if isinstance(sequences, BadRow):
        raise sequences
    documents = [
        Document(
            input_ids=s.input_ids[:max_length],
            is_supervised=s.is_supervised[:max_length],
            id=row.id if len(sequences) == 1 else f"{row.id}#turn-{s.first_turn}",
            category=row.category,
        )
        for s in sequences
        if s.is_supervised[:max_length].any()
    ]
    if not documents:
        raise BadRow(
            f"expected a supervised token within {max_length} tokens, found that the prompt alone has "
            f"{min(int(s.is_supervised.argmax()) for s in sequences)}"
        )
    return documents, sum(len(s.input_ids) > max_length for s in sequences)


def _notices(reader: RowReader, chat: ChatTokenizer, bad: BadRows) -> tuple[str, ...]:
    notices = [bad.summary()]
    if reader.ignored_keys:
        notices.append(f"{reader.path}: keys that nothing reads: {', '.join(sorted(reader.ignored_keys))}")
    if chat.vocab_size is None:
        notices.append(f"{chat.folder} has no config.json: token ids were not compared with the target's vocabulary")
    return tuple(n for n in notices if n)
