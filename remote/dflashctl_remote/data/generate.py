"""The target answers prompts, greedily, in batches: a drafter learns from its target's own words.

A row of the output is the prompt's row with the answer as its last message, and `finish_reason`: "stop" if the
target ended it, "length" if it was cut, which tokenising honours by not teaching an end that never came.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dflashctl_remote.data.chat import ChatTokenizer, tokenizer_sha256
from dflashctl_remote.data.resumable import ResumableLines, differing_keys, read_origin
from dflashctl_remote.data.rows import BadRow, BadRows, Row, RowReader
from dflashctl_remote.evaluate.repetition import distinct_share, repeated_share
from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.data import GenerateSpec, Message
from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.events import Event, Notice, Progress
from dflashctl_remote.spec.manifest import sha256_of, write_atomically, write_json
from dflashctl_remote.target.batch import greedy_batch
from dflashctl_remote.target.load import load_target, read_shape, target_sha256


@dataclass(frozen=True)
class Prompt:
    row: Row
    ids: tuple[int, ...]


class Response(Spec):
    """A line of the partial file: what the target wrote, as tokens and as text."""

    id: str
    tokens: tuple[int, ...]
    """With the stop token that ended it."""
    text: str
    """Without it, and without a character that was cut in its middle."""
    finish_reason: Literal["stop", "length"]
    is_same_retokenised: bool
    """Whether tokenising the conversation gives these tokens again."""


@dataclass(frozen=True)
class Generated:
    """What was made."""

    num_rows: int
    num_stopped: int
    num_cut: int
    num_empty: int
    """Prompts that the target answered with nothing; not in the output."""
    num_retokenised_differently: int
    num_bad_rows: int
    num_tokens: int
    repeated_token_share: float
    distinct_4gram_share: float


def generate(spec: GenerateSpec, emit: Callable[[Event], None]) -> Generated:
    """Write the JSONL that `spec` asks for; what an interrupted run of the same spec did is kept.

    Raises BadInput: a bad prompt unless skipped, none left, an output that holds something else.
    """
    output = Path(spec.output)
    bad = BadRows(Path(spec.prompts), skip=spec.skip_bad)
    chat = ChatTokenizer.open(Path(spec.target))
    prompts = list(_prompts(spec, chat, bad))
    if not prompts:
        raise BadInput(f"expected prompts in {spec.prompts}, found no usable row ({bad.count} bad)")
    if problem := bad.summary():
        emit(Notice(message=problem))
    origin = _origin(spec, chat)
    finished = _finished(output, origin)
    if finished is not None:
        emit(Notice(message=f"{output} already holds these answers, complete; nothing was generated"))
        return finished
    lines = ResumableLines(output, origin)
    if lines.was_dropped:
        emit(Notice(message=f"unfinished answers made with other settings at {lines.folder} were dropped"))
    found = [Response.model_validate(line) for line in lines.found]
    responses = {response.id: response for response in found}
    if responses:
        emit(Notice(message=f"resuming: {len(responses)} of {len(prompts)} answers were already there"))
    todo = [prompt for prompt in prompts if prompt.row.id not in responses]
    target = load_target(spec.target, device=spec.device, dtype=spec.dtype) if todo else None
    for start in range(0, len(todo), spec.batch_size):
        assert target is not None
        batch = todo[start : start + spec.batch_size]
        eos = target.shape.eos_token_ids
        answers = greedy_batch(
            target, [prompt.ids for prompt in batch], max_new_tokens=spec.max_new_tokens, eos_token_ids=eos
        )
        answered = responses_of(chat, batch, answers, eos)
        lines.append(*(response.model_dump_json() for response in answered))
        responses.update({response.id: response for response in answered})
        emit(Progress(what="generate", done=len(responses), total=len(prompts), unit="prompts"))
    generated = _summary([responses[prompt.row.id] for prompt in prompts], bad.count)
    if not generated.num_rows:
        raise BadInput(
            f"the target in {spec.target} answered all {len(prompts)} prompts with nothing",
            hint="compare its chat template and stop tokens with those that it is served with",
        )
    _notice(generated, emit)
    _publish(output, prompts, responses, origin, generated)
    lines.remove()
    return generated


def responses_of(
    chat: ChatTokenizer,
    prompts: Sequence[Prompt],
    answers: Sequence[tuple[int, ...]],
    eos_token_ids: Collection[int],
) -> list[Response]:
    """The target's tokens as text, and whether that text leads back to them."""
    plain = [_response(chat, prompt, tokens, eos_token_ids) for prompt, tokens in zip(prompts, answers, strict=True)]
    return [
        response.model_copy(update={"is_same_retokenised": is_same})
        for response, is_same in zip(plain, _are_same_retokenised(chat, prompts, plain), strict=True)
    ]


def _response(chat: ChatTokenizer, prompt: Prompt, tokens: tuple[int, ...], eos_token_ids: Collection[int]) -> Response:
    is_stopped = tokens[-1] in eos_token_ids
    written = tokens[:-1] if is_stopped else tokens
    text = chat.tokenizer.decode(written, skip_special_tokens=True)
    while not is_stopped and text.endswith("\ufffd"):
        tokens = written = written[:-1]
        text = chat.tokenizer.decode(written, skip_special_tokens=True)
    return Response(
        id=prompt.row.id,
        tokens=tokens,
        text=text,
        finish_reason="stop" if is_stopped else "length",
        is_same_retokenised=False,
    )


def _are_same_retokenised(
    chat: ChatTokenizer, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> Iterator[bool]:
    """Made as `data tokenize` makes its documents from these rows."""
    rows = [_answered(prompt.row, response) for prompt, response in zip(prompts, responses, strict=True)]
    for prompt, response, sequences in zip(prompts, responses, chat.sequences(rows), strict=True):
        if not response.text.strip():
            yield True
        elif isinstance(sequences, BadRow):
            yield False
        else:
            yield tuple(sequences[-1].input_ids.tolist()) == prompt.ids + response.tokens


def _answered(row: Row, response: Response) -> Row:
    message = Message(role="assistant", content=response.text)
    return Row(
        id=row.id,
        messages=(*row.messages, message),
        category=row.category,
        is_cut=response.finish_reason == "length",
        line=row.line,
    )


def _prompts(spec: GenerateSpec, chat: ChatTokenizer, bad: BadRows) -> Iterator[Prompt]:
    longest = read_shape(spec.target).max_position_embeddings - spec.max_new_tokens
    for row in RowReader(Path(spec.prompts), bad).prompts():
        try:
            ids = tuple(chat.prompt_ids(row.messages))
            if len(ids) > longest:
                raise BadRow(f"expected at most {longest} tokens, so that the answer fits the target, found {len(ids)}")
        except BadRow as problem:
            bad.add(row.line, str(problem))
            continue
        yield Prompt(row, ids)


def _origin(spec: GenerateSpec, chat: ChatTokenizer) -> dict[str, Any]:
    """All that the answers depend on, by content."""
    target = Path(spec.target)
    return {
        "target": target_sha256(target),
        "tokenizer": tokenizer_sha256(target),
        "template": chat.template_sha256,
        "prompts": sha256_of(Path(spec.prompts)),
        "max_new_tokens": spec.max_new_tokens,
        "device": spec.device,
        "dtype": spec.dtype,
    }


def _origin_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.origin.json")


def _finished(output: Path, origin: dict[str, Any]) -> Generated | None:
    """What was generated, if the output is there and of the same origin; None if the place is free."""
    if not output.exists():
        return None
    found = read_origin(_origin_path(output))
    if found.get("origin") == origin and found.get("output_sha256") == sha256_of(output):
        return Generated(**found["generated"])
    of_other = differing_keys(origin, found["origin"]) if "origin" in found else "it was not written by this command"
    if found.get("origin") == origin:
        of_other = "it was changed since"
    raise BadInput(
        f"wanted to write answers to {output}, found a file there that differs ({of_other})",
        hint="give another --output, or remove it",
    )


def _summary(responses: Sequence[Response], num_bad_rows: int) -> Generated:
    spoken = [response for response in responses if response.text.strip()]
    tokens = [response.tokens for response in spoken]
    return Generated(
        num_rows=len(spoken),
        num_stopped=sum(response.finish_reason == "stop" for response in spoken),
        num_cut=sum(response.finish_reason == "length" for response in spoken),
        num_empty=len(responses) - len(spoken),
        num_retokenised_differently=sum(not response.is_same_retokenised for response in spoken),
        num_bad_rows=num_bad_rows,
        num_tokens=sum(map(len, tokens)),
        repeated_token_share=repeated_share(tokens),
        distinct_4gram_share=distinct_share(tokens),
    )


def _notice(generated: Generated, emit: Callable[[Event], None]) -> None:
    if generated.num_empty:
        emit(Notice(message=f"{generated.num_empty} prompts were answered with nothing and left out"))
    if generated.num_retokenised_differently:
        emit(
            Notice(
                message=f"{generated.num_retokenised_differently} of {generated.num_rows} answers, tokenised again, "
                "give other tokens than the target wrote: training will see those"
            )
        )


def _publish(
    output: Path,
    prompts: Sequence[Prompt],
    responses: dict[str, Response],
    origin: dict[str, Any],
    generated: Generated,
) -> None:
    """The output appears whole, by rename; beside it the note that lets the same command see that it is done."""
    spoken = [(p.row, responses[p.row.id]) for p in prompts if responses[p.row.id].text.strip()]
    write_atomically(output, "".join(_line(row, response) + "\n" for row, response in spoken))
    note = {"origin": origin, "output_sha256": sha256_of(output), "generated": asdict(generated)}
    write_json(_origin_path(output), note)


def _line(row: Row, response: Response) -> str:
    value: dict[str, Any] = {"id": row.id}
    if row.category is not None:
        value["category"] = row.category
    value["messages"] = [message.model_dump(exclude_none=True) for message in row.messages]
    value["messages"].append({"role": "assistant", "content": response.text})
    value["finish_reason"] = response.finish_reason
    value["num_tokens"] = len(response.tokens)
    return json.dumps(value, ensure_ascii=False)
