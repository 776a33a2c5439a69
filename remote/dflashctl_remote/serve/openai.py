"""Requests of the OpenAI API: what is understood, what is refused, and what is let pass.

A field that would change the answer and is not implemented is refused unless it asks for nothing; one that cannot
change it is ignored; any other is refused by name, because nobody knows what its sender expects.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from dflashctl_remote.spec.data import Message

R = TypeVar("R", bound="AnswerRequest")

IGNORED = frozenset(
    [
        "cache_salt",
        "include_reasoning",
        "metadata",
        "parallel_tool_calls",
        "priority",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "return_tokens_as_token_ids",
        "safety_identifier",
        "service_tier",
        "spaces_between_special_tokens",
        "store",
        "user",
    ]
)
"""They concern bookkeeping, or fields that are refused themselves."""

REFUSED: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
}
"""With the values, beside null, by which they ask for nothing."""

_NOT_FOR_TEMPLATES = frozenset(
    [
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    ]
)


class ApiError(Exception):
    """What a client is told, in OpenAI's shape."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {
                "message": message,
                "type": "invalid_request_error" if status < 500 else "server_error",
                "param": param,
                "code": code,
            }
        }


class _Closed(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StreamOptions(_Closed):
    include_usage: bool = False
    """One more chunk at the end, without choices."""
    continuous_usage_stats: bool = False
    """The usage so far in every chunk."""
    include_obfuscation: bool = False


class AnswerRequest(_Closed):
    """What both endpoints take."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0)
    """None: 1, OpenAI's default; the target's generation_config.json is not asked."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    """-1 or 0: all."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: list[str] = Field(default_factory=list, max_length=64)
    stop_token_ids: list[int] | None = None
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    return_token_ids: bool | None = None
    """As vLLM has it: `prompt_token_ids` once, `token_ids` in every choice."""

    @field_validator("stop", mode="before")
    @classmethod
    def _as_list(cls, stop: Any) -> Any:
        return [] if stop is None else [stop] if isinstance(stop, str) else stop

    @field_validator("stop")
    @classmethod
    def _has_no_empty(cls, stop: list[str]) -> list[str]:
        if not all(stop):
            raise ValueError("a stop string must not be empty")
        return stop

    @model_validator(mode="after")
    def _streams_if_it_has_options(self) -> "AnswerRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self


class TextPart(_Closed):
    type: Literal["text"]
    text: str


class ChatMessage(_Closed):
    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]
    reasoning_content: str | None = None

    def message(self) -> Message:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return Message(role=self.role, content=text, reasoning_content=self.reasoning_content)


class ChatRequest(AnswerRequest):
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    """None: as many as the context has room for."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The newer name; it wins."""
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _is_for_the_template(cls, arguments: dict[str, Any] | None) -> dict[str, Any] | None:
        taken = sorted(_NOT_FOR_TEMPLATES & set(arguments or {}))
        if taken:
            raise ValueError(f"{taken[0]} is not the template's to know")
        return arguments


class CompletionRequest(AnswerRequest):
    prompt: str | list[int]
    max_tokens: int | None = Field(default=16, ge=1)

    @field_validator("prompt", mode="before")
    @classmethod
    def _is_one(cls, prompt: Any) -> Any:
        """A list of one prompt is that prompt."""
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise ValueError(f"one prompt a request, found {len(prompt)}")
            prompt = prompt[0]
        if not isinstance(prompt, str | list) or not prompt:
            raise ValueError("a text or token ids are needed, and not none of them")
        return prompt


def parse_request(request_class: type[R], body: bytes) -> R:
    """Raises ApiError 400 naming the field."""
    try:
        value = from_json(body)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError(400, f"expected a JSON object, found {type(value).__name__}", code="invalid_json")
    _refuse_unsupported(request_class, value)
    known = {name: v for name, v in value.items() if name in request_class.model_fields}
    try:
        return request_class.model_validate(known)
    except ValidationError as error:
        raise _invalid(error) from error


def _refuse_unsupported(request_class: type[AnswerRequest], value: dict[str, Any]) -> None:
    for name, wanted in value.items():
        if name in request_class.model_fields or name in IGNORED or wanted is None:
            continue
        if name not in REFUSED:
            raise ApiError(400, f"{name}: no such field is known here", code="unknown_field", param=name)
        if wanted not in REFUSED[name]:
            raise ApiError(
                400,
                f"{name}: the reference engine does not do this, found {_shortened(wanted)}; leave it out",
                code="unsupported_field",
                param=name,
            )


def _invalid(error: ValidationError) -> ApiError:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        message = "is needed"
    else:
        message = f"{message}, found {_shortened(first['input'])}" if place else message
    param = str(first["loc"][0]) if first["loc"] else None
    return ApiError(400, f"{place}: {message}" if place else message, code="invalid_value", param=param)


def _shortened(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
