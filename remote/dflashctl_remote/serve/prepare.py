"""From a checked request to what the scheduler takes: the prompt's tokens, the sampler, where the answer ends."""

from dflashctl_remote.data.rows import BadRow
from dflashctl_remote.serve.loading import ServedModel
from dflashctl_remote.serve.openai import AnswerRequest, ApiError, ChatRequest, CompletionRequest
from dflashctl_remote.serve.sampling import Sampler, SamplingParams
from dflashctl_remote.serve.scheduler import Deliver, Limits, Request
from dflashctl_remote.serve.text import AnswerText


def chat_prompt(model: ServedModel, wanted: ChatRequest) -> tuple[int, ...]:
    """Raises ApiError 400, and 404 for another model."""
    _check_model(model, wanted)
    if model.chat is None:
        raise ApiError(
            400,
            f"{model.name} has no chat template: use /v1/completions",
            code="no_chat_template",
            param="messages",
        )
    messages = [message.message() for message in wanted.messages]
    try:
        return tuple(model.chat.prompt_ids(messages, wanted.chat_template_kwargs))
    except BadRow as problem:
        raise ApiError(400, str(problem), code="invalid_value", param="messages") from problem


def completion_prompt(model: ServedModel, wanted: CompletionRequest) -> tuple[int, ...]:
    """Text gets the special tokens that the tokenizer adds by itself, ids are taken as they are. Raises ApiError."""
    _check_model(model, wanted)
    if isinstance(wanted.prompt, str):
        ids = model.target.tokenizer(wanted.prompt, return_attention_mask=False)["input_ids"]
        if not ids:
            raise ApiError(400, "prompt: no tokens in it", code="invalid_value", param="prompt")
        return tuple(ids)
    _check_ids(model, wanted.prompt, "prompt")
    return tuple(wanted.prompt)


def answer_request(
    model: ServedModel,
    wanted: AnswerRequest,
    prompt_ids: tuple[int, ...],
    max_tokens: int | None,
    request_id: str,
    deliver: Deliver,
) -> Request:
    """`max_tokens` None: what the context has room for. Raises ApiError 400 for what does not fit the context."""
    room = model.max_length_tokens - len(prompt_ids)
    wanted_tokens = (1 if max_tokens is None else max_tokens) + len(prompt_ids)
    if wanted_tokens > model.max_length_tokens:
        raise ApiError(
            400,
            f"{wanted_tokens} tokens of context are needed ({len(prompt_ids)} of the prompt, "
            f"{wanted_tokens - len(prompt_ids)} of the answer), and the server takes {model.max_length_tokens}: "
            "shorten the prompt or lower max_tokens",
            code="context_length_exceeded",
            param="max_tokens" if room > 0 else None,
        )
    _check_ids(model, wanted.stop_token_ids or [], "stop_token_ids")
    stop_ids = frozenset(wanted.stop_token_ids or ())
    if not wanted.ignore_eos:
        stop_ids |= model.eos_token_ids
    params = SamplingParams(
        temperature=1.0 if wanted.temperature is None else wanted.temperature,
        top_k=max(wanted.top_k or 0, 0),
        top_p=1.0 if wanted.top_p is None else wanted.top_p,
        seed=wanted.seed,
        min_tokens=wanted.min_tokens,
        stop_token_ids=tuple(sorted(stop_ids)),
    )
    return Request(
        request_id,
        lambda: model.generation(prompt_ids, Sampler(params)),
        AnswerText(model.decode, wanted.stop),
        Limits(room if max_tokens is None else max_tokens, stop_ids, wanted.min_tokens),
        len(prompt_ids),
        deliver,
    )


def _check_model(model: ServedModel, wanted: AnswerRequest) -> None:
    if wanted.model != model.name:
        raise ApiError(
            404,
            f"model {wanted.model!r} is not served here: {model.name!r} is",
            code="model_not_found",
            param="model",
        )


def _check_ids(model: ServedModel, ids: list[int], field: str) -> None:
    vocab_size = model.target.shape.vocab_size
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ApiError(
                400,
                f"{field}: token {token} is outside the vocabulary of {vocab_size}",
                code="invalid_value",
                param=field,
            )
