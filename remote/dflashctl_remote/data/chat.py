"""From a conversation to token ids, as the serving engine makes them, with the tokens that the assistant wrote marked.

For every turn of the assistant the prompt is what the template renders before it, with the generation prompt, and the
answer is what the template adds once the turn is there, up to and including its end-of-turn token. What the template
puts in front of the answer by itself (an empty <think> block) is prompt. The prompt is tokenised by itself, as a
server does. Turns share a sequence only while each prompt begins with all tokens so far: where the template rewrites
earlier turns (Qwen3 drops their <think> blocks), the next turn starts a sequence of its own with the rewritten
history, because that is what the drafter sees when that turn is served. A template that does not render an answer as
its generation prompt begins it, or that drops part of an answer, makes the row bad: no ids made from it could be
those of serving.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import jinja2
import numpy as np
import numpy.typing as npt

from dflashctl_remote.data.rows import BadRow, Row, has_text
from dflashctl_remote.spec.data import Message
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.manifest import sha256_of

A = TypeVar("A")
R = TypeVar("R")

_VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")


@dataclass(frozen=True)
class Turn:
    """One answer of the assistant and the whole text before it."""

    number: int
    """Among the assistant's messages, from 1."""
    prompt: str
    answer: str
    """Ends with the end-of-turn token, if the template writes one and the answer was not cut."""


@dataclass(frozen=True)
class TokenSequence:
    """What goes through the target at once; the last token is supervised."""

    input_ids: npt.NDArray[np.int64]
    is_supervised: npt.NDArray[np.bool_]
    first_turn: int
    """Number of the first supervised turn."""


class ChatTokenizer:
    """A target's tokenizer and chat template."""

    def __init__(self, folder: Path, tokenizer: Any, end_ids: frozenset[int], vocab_size: int | None) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        """Of the target; None if its folder has no config.json."""
        special = [t for i, t in tokenizer.added_tokens_decoder.items() if t.special or i in end_ids]
        self._end_marks = tuple(token.content for token in special)
        self.template_sha256 = hashlib.sha256(tokenizer.get_chat_template().encode()).hexdigest()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Raises BadInput if there is no tokenizer, or it has no chat template."""
        tokenizer = load_tokenizer(folder)
        if not tokenizer.chat_template:
            raise BadInput(
                f"the tokenizer in {folder} has no chat template, so what the assistant wrote cannot be told",
                hint="put the template that the target is served with there, as chat_template.jinja",
            )
        # Only what the lengths are for decides on a cut, not a number in the tokenizer's file.
        tokenizer.model_max_length = 2**62
        config = _json_or_empty(folder / "config.json")
        vocab_size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        eos = _json_or_empty(folder / "generation_config.json").get("eos_token_id") or []
        end_ids = {*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id} - {None}
        return cls(folder, tokenizer, frozenset(end_ids), vocab_size)

    def prompt_ids(self, messages: Sequence[Message], template_arguments: Mapping[str, Any] | None = None) -> list[int]:
        """What a server feeds the target to have the next message answered; raises BadRow.

        `template_arguments` are the template's own, such as enable_thinking.
        """
        return self._ids([self._render(messages, is_prompt=True, arguments=template_arguments)])[0]

    def turns(self, row: Row) -> list[Turn]:
        """The assistant's turns with text; raises BadRow."""
        indices = [i for i, m in enumerate(row.messages) if m.role == "assistant"]
        spoken = [(n, i) for n, i in enumerate(indices, start=1) if has_text(row.messages[i])]
        last = indices[-1]
        return [self._turn(row.messages[: i + 1], n, is_cut=row.is_cut and i == last) for n, i in spoken]

    def sequences(self, rows: Sequence[Row]) -> list[list[TokenSequence] | BadRow]:
        """For every row its sequences, or what is wrong with it. Many rows at once keep all cores busy."""
        turns = [_result_or_bad(self.turns, row) for row in rows]
        flat = [turn for some in turns if not isinstance(some, BadRow) for turn in some]
        tokens = iter(self._tokenize(flat))
        out: list[list[TokenSequence] | BadRow] = []
        for some in turns:
            if isinstance(some, BadRow):
                out.append(some)
                continue
            of_row = [next(tokens) for _ in some]
            out.append(_result_or_bad(self._join, list(zip(some, of_row, strict=True))))
        return out

    def _turn(self, messages: Sequence[Message], number: int, *, is_cut: bool) -> Turn:
        prompt = self._render(messages[:-1], is_prompt=True)
        whole = self._render(messages, is_prompt=False)
        if not whole.startswith(prompt):
            at = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(whole))
            raise BadRow(
                f"expected the template to render answer {number} after its generation prompt, found that it rewrites "
                f"{prompt[at : at + 30]!r} to {whole[at : at + 30]!r}"
            )
        answer = whole[len(prompt) :].rstrip()
        mark = next((m for m in self._end_marks if answer.endswith(m)), "")
        text = answer.removesuffix(mark)
        if (messages[-1].reasoning_content or "").strip():
            end = _end_of_written(messages[-1], text, number)
            return Turn(number, prompt, text[:end] if is_cut else answer)
        start = _start_of_written(messages[-1].content, prompt, text, number)
        if is_cut:
            # A template takes every answer for whole: it closes the <think> block that this one is still in.
            return Turn(number, prompt, messages[-1].content if start else text)
        return Turn(number, prompt + text[:start], answer[start:])

    def _render(
        self, messages: Sequence[Message], *, is_prompt: bool, arguments: Mapping[str, Any] | None = None
    ) -> str:
        plain = [m.model_dump(exclude_none=True) for m in messages]
        try:
            return self.tokenizer.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=is_prompt, **arguments or {}
            )
        except jinja2.TemplateError as error:
            roles = ", ".join(m.role for m in messages) or "none"
            raise BadRow(f"expected messages that the chat template takes, found {roles}, refused: {error}") from error

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
        return encoded["input_ids"]

    def _tokenize(self, turns: list[Turn]) -> Iterator[tuple[list[int], list[int]]]:
        """(ids of the prompt, ids of the answer) for every turn.

        Where a token would reach across the boundary, the answer is tokenised by itself: the server's prompt ends
        there, and what the target writes starts with a token of its own.
        """
        prompts = self._ids([t.prompt for t in turns])
        wholes = self._ids([t.prompt + t.answer for t in turns])
        crosses = [w[: len(p)] != p for p, w in zip(prompts, wholes, strict=True)]
        apart = iter(self._ids([t.answer for t, c in zip(turns, crosses, strict=True) if c]))
        for prompt, whole, cross in zip(prompts, wholes, crosses, strict=True):
            yield prompt, next(apart) if cross else whole[len(prompt) :]

    def _join(self, turns: list[tuple[Turn, tuple[list[int], list[int]]]]) -> list[TokenSequence]:
        sequences: list[TokenSequence] = []
        ids: list[int] = []
        supervised: list[bool] = []
        first_turn = 0
        for turn, (prompt, answer) in turns:
            self._check_ids(turn, prompt, answer)
            if prompt[: len(ids)] != ids or not ids:
                if ids:
                    sequences.append(_sequence(ids, supervised, first_turn))
                ids, supervised, first_turn = [], [], turn.number
            supervised = supervised + [False] * (len(prompt) - len(ids)) + [True] * len(answer)
            ids = prompt + answer
        return [*sequences, _sequence(ids, supervised, first_turn)]

    def _check_ids(self, turn: Turn, prompt: list[int], answer: list[int]) -> None:
        if not answer:
            raise BadRow(f"expected tokens in answer {turn.number}, found none")
        largest = max(chain(prompt, answer))
        if self.vocab_size is not None and largest >= self.vocab_size:
            raise BadRow(
                f"expected token ids below the target's vocabulary of {self.vocab_size}, found {largest} "
                f"({self.tokenizer.convert_ids_to_tokens(largest)!r})"
            )


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a target's folder; raises BadInput. Nothing is ever downloaded."""
    # Slow to import, and only two jobs of many need it.
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in _VOCABULARY_FILES):
        raise BadInput(f"wanted a target with a tokenizer at {folder}, found no {' or '.join(_VOCABULARY_FILES)}")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"the tokenizer in {folder} cannot be loaded: {first_line}") from error


def tokenizer_sha256(folder: Path) -> str:
    """Names the vocabulary: what turns text to ids, chat template and settings apart."""
    digests = [f"{n} {sha256_of(folder / n)}" for n in _VOCABULARY_FILES if (folder / n).is_file()]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _sequence(ids: list[int], supervised: list[bool], first_turn: int) -> TokenSequence:
    return TokenSequence(np.array(ids, np.int64), np.array(supervised, np.bool_), first_turn)


def _start_of_written(written: str, prompt: str, text: str, number: int) -> int:
    """Where in the rendered answer `text` that begins which the assistant wrote; white space may have moved.

    What it wrote may begin in the prompt: servers that put <think> there are read by tools that put it back.
    """
    if text.endswith(written):
        added = text[: len(text) - len(written)]
        return len(added) if added.strip() else 0
    rendered, wanted = _squeezed(text), _squeezed(written)
    if rendered.endswith(wanted):
        num_added = len(rendered) - len(wanted)
        visible = [i for i, c in enumerate(text) if not c.isspace()]
        return visible[num_added] if num_added else 0
    in_prompt = wanted.removesuffix(rendered)
    if in_prompt == wanted or not _squeezed(prompt[-200:]).endswith(in_prompt):
        raise _not_verbatim(number, written)
    return 0


def _end_of_written(message: Message, text: str, number: int) -> int:
    """Where in the rendered answer `text` the last of what the assistant wrote ends; its reasoning came apart."""
    spoken = [t for t in (message.reasoning_content or "", message.content) if t.strip()]
    for part in spoken:
        if _squeezed(part) not in _squeezed(text):
            raise _not_verbatim(number, part)
    at = text.rfind(spoken[-1].strip())
    return at + len(spoken[-1].strip()) if at >= 0 else len(text)


def _not_verbatim(number: int, written: str) -> BadRow:
    return BadRow(
        f"expected the template to render all that the assistant wrote, found part of answer {number} "
        f"({len(written)} characters) changed or dropped"
    )


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _result_or_bad(function: Callable[[A], R], argument: A) -> R | BadRow:
    try:
        return function(argument)
    except BadRow as bad:
        return bad


def _json_or_empty(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadInput(f"{path} cannot be read as JSON: {error}") from error
    return value if isinstance(value, dict) else {}
