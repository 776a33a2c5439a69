"""Conversations from JSONL, checked line by line: what is wrong is named with its file and line.

A row is {"messages": [{"role", "content"}, ..]} or the ShareGPT spelling {"conversations": [{"from", "value"}, ..]};
"id", "category" and "finish_reason" are optional. The file may be gzipped (.gz).
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from dflashctl_remote.spec.data import Message
from dflashctl_remote.spec.errors import BadInput

_ROLE_OF_SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
_KNOWN_KEYS = {"id", "messages", "conversations", "category", "finish_reason", "num_tokens"}
"""`num_tokens` is written by `data generate` for people; nothing here reads it, and it is no surprise."""
_NUM_NAMED = 5


@dataclass(frozen=True)
class Row:
    id: str
    """Unique in the file; "line-N" where the file gives none."""
    messages: tuple[Message, ...]
    category: str | None
    is_cut: bool
    """finish_reason is "length": the last answer has no end of its own."""
    line: int
    """From 1."""


class BadRow(Exception):
    """A row that can't be used; the message says what was expected and what was found."""


class BadRows:
    """Decides what becomes of bad rows: the first one stops the job, or all are counted and the first few named."""

    def __init__(self, path: Path, *, skip: bool) -> None:
        self.path = path
        self.skip = skip
        self.count = 0
        self._named: list[str] = []

    def add(self, line: int, problem: str) -> None:
        """Raises BadInput unless bad rows are skipped."""
        if not self.skip:
            raise BadInput(
                f"{self.path}:{line}: {problem}", hint="mend the line, or leave such rows out with --skip-bad"
            )
        self.count += 1
        if len(self._named) < _NUM_NAMED:
            self._named.append(f"line {line}: {problem}")

    def summary(self) -> str | None:
        """One sentence for a Notice; None if there was no bad row."""
        if not self.count:
            return None
        unnamed = self.count - len(self._named)
        more = f"; and {unnamed} more" if unnamed else ""
        return f"{self.path}: {self.count} bad rows left out: {'; '.join(self._named)}{more}"


class RowReader:
    """One pass over a file; `done_bytes` of `total_bytes` (as stored, so compressed for .gz) tell the progress."""

    def __init__(self, path: Path, bad: BadRows) -> None:
        if not path.is_file():
            raise BadInput(f"wanted a JSONL file at {path}, found {'a folder' if path.is_dir() else 'nothing'} there")
        if not os.access(path, os.R_OK):
            raise BadInput(f"wanted to read {path}, found that this user may not")
        self.path = path
        self.bad = bad
        self.total_bytes = path.stat().st_size
        self.done_bytes = 0
        self.num_read = 0
        self.ignored_keys: set[str] = set()

    def conversations(self) -> Iterator[Row]:
        """Rows with something to train on: at least one assistant message with text, after one of the user."""
        return self._rows(_check_conversation)

    def prompts(self) -> Iterator[Row]:
        """Rows to be answered: the last message is the user's."""
        return self._rows(_check_prompt)

    def _rows(self, check: Callable[[tuple[Message, ...]], None]) -> Iterator[Row]:
        seen: dict[str, int] = {}
        for line, raw in self._lines():
            self.num_read += 1
            try:
                row = self._parse(line, raw)
                check(row.messages)
                if row.id in seen:
                    raise BadRow(f"expected an id of its own, found {row.id!r}, which line {seen[row.id]} already has")
            except BadRow as problem:
                self.bad.add(line, str(problem))
                continue
            seen[row.id] = line
            yield row

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self.path.open("rb") as stored, self._content(stored) as content:
                for line, raw in enumerate(content, start=1):
                    self.done_bytes = stored.tell()
                    text = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
                    if text.strip():
                        yield line, text
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadInput(f"{self.path} cannot be read as gzip: {error}") from error

    def _content(self, stored: IO[bytes]) -> AbstractContextManager[Iterable[bytes]]:
        if self.path.suffix == ".gz":
            return gzip.GzipFile(fileobj=stored)
        return nullcontext(stored)

    def _parse(self, line: int, raw: bytes) -> Row:
        try:
            value = json.loads(raw)
        except UnicodeDecodeError as error:
            raise BadRow(f"expected UTF-8, found byte 0x{raw[error.start]:02x} at {error.start}") from error
        except json.JSONDecodeError as error:
            raise BadRow(
                f"expected one JSON object a line, found {_excerpt(raw)} ({error.msg} at column {error.colno})"
            ) from error
        except (ValueError, RecursionError) as error:
            raise BadRow(f"expected one JSON object a line, found {_excerpt(raw)} ({error})") from error
        if not isinstance(value, dict):
            raise BadRow(f"expected a JSON object with messages, found {_kind(value)}")
        self.ignored_keys |= value.keys() - {
            "id",
            "messages",
            "conversations",
            "category",
            "finish_reason",
            "num_tokens",
        }
        return Row(
            id=_id_of(value.get("id"), line),
            messages=_messages_of(value),
            category=_text_or_none(value, "category"),
            is_cut=_text_or_none(value, "finish_reason") == "length",
            line=line,
        )


def read_prompts(path: Path, bad: BadRows | None = None) -> list[Row]:
    """All prompt rows of a file; raises BadInput at the first bad one unless `bad` skips, and if none is left."""
    bad = bad or BadRows(path, skip=False)
    rows = list(RowReader(path, bad).prompts())
    if not rows:
        raise BadInput(f"expected prompts in {path}, found no usable row ({bad.count} bad)")
    return rows


def _check_conversation(messages: tuple[Message, ...]) -> None:
    if not messages:
        raise BadRow("expected a conversation, found no messages")
    roles = [m.role for m in messages]
    if not any(m.role == "assistant" and has_text(m) for m in messages):
        raise BadRow("expected an assistant message with text, found " + (", ".join(roles) or "none"))
    if "user" not in roles[: roles.index("assistant")]:
        raise BadRow("expected a user message before the first assistant message, found none")


def _check_prompt(messages: tuple[Message, ...]) -> None:
    if not messages:
        raise BadRow("expected a prompt, found no messages")
    if messages[-1].role != "user" or not has_text(messages[-1]):
        raise BadRow(
            f"expected the last message to be the user's, with text, found one of the {messages[-1].role} "
            f"with {len(messages[-1].content)} characters"
        )


def has_text(message: Message) -> bool:
    """Whether the message says anything but white space."""
    return bool(message.content.strip() or (message.reasoning_content or "").strip())


def _messages_of(value: dict[str, Any]) -> tuple[Message, ...]:
    if ("messages" in value) == ("conversations" in value):
        found = "both" if "messages" in value else f"neither (keys: {', '.join(sorted(value)) or 'none'})"
        raise BadRow(f'expected "messages" or "conversations", found {found}')
    key = "messages" if "messages" in value else "conversations"
    if not isinstance(value[key], list):
        raise BadRow(f'expected a list in "{key}", found {_kind(value[key])}')
    parse = _openai_message if key == "messages" else _sharegpt_message
    return tuple(parse(item, f"{key}[{i}]") for i, item in enumerate(value[key]))


def _openai_message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise BadRow(f"expected an object with role and content at {where}, found {_kind(item)}")
    # Servers dump every field they know, most of them null; what has a value may change the rendering.
    present = {k: v for k, v in item.items() if v not in (None, [], {}) or k in ("role", "content")}
    try:
        message = Message.model_validate(present)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([where, *map(str, first["loc"])])
        if first["type"] == "extra_forbidden":
            raise BadRow(f"expected only role, content and reasoning_content, found {place}") from error
        raise BadRow(f"expected {_expected_of(first)} at {place}, found {_found_of(first)}") from error
    return _checked_text(message, where)


def _sharegpt_message(item: Any, where: str) -> Message:
    if not isinstance(item, dict) or not isinstance(item.get("value"), str):
        raise BadRow(f'expected an object with "from" and a text in "value" at {where}, found {_kind(item)}')
    role = _ROLE_OF_SHAREGPT.get(str(item.get("from")))
    if role is None:
        raise BadRow(f"expected human, gpt or system at {where}.from, found {item.get('from')!r}")
    return _checked_text(Message.model_validate({"role": role, "content": item["value"]}), where)


def _checked_text(message: Message, where: str) -> Message:
    # JSON can spell half of a surrogate pair, which no tokenizer takes.
    try:
        (message.content + (message.reasoning_content or "")).encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"expected Unicode text at {where}, found a lone surrogate escape") from error
    return message


def _id_of(value: Any, line: int) -> str:
    if value is None:
        return f"line-{line}"
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise BadRow(f"expected a text or a whole number as id, found {_kind(value)}")
    return str(value)


def _text_or_none(value: dict[str, Any], key: str) -> str | None:
    text = value.get(key)
    if text is not None and not isinstance(text, str):
        raise BadRow(f'expected a text in "{key}", found {_kind(text)}')
    return text


def _expected_of(error: Any) -> str:
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"])
    return "a text"


def _found_of(error: Any) -> str:
    return "nothing" if error["type"] == "missing" else _kind(error["input"])


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    kind = names.get(type(value), "a number")
    return f"{value!r}" if isinstance(value, str) and len(value) <= 40 else kind


def _excerpt(raw: bytes) -> str:
    text = raw.decode("utf-8", errors="replace").strip()
    return repr(text if len(text) <= 40 else text[:40] + "...")
