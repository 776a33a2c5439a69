"""Answers in OpenAI's shapes, whole and in chunks, with vLLM's additions where a request asks for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflashctl_remote.serve.metrics import Speculation
from dflashctl_remote.serve.scheduler import Delta


@dataclass(frozen=True)
class Reply:
    """What all parts of one answer share."""

    id: str
    created_s: int
    model: str
    prompt_ids: tuple[int, ...]
    has_token_ids: bool
    is_chat: bool

    def first_chunks(self) -> list[dict[str, Any]]:
        """Sent before the first text: chat names who speaks."""
        if not self.is_chat:
            return []
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        ids = {"prompt_token_ids": list(self.prompt_ids)} if self.has_token_ids else {}
        return [self._body("chat.completion.chunk", [choice]) | ids]

    def chunk(self, delta: Delta, *, is_first: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": {"content": delta.text}} if self.is_chat else {"text": delta.text}
        choice |= {"logprobs": None, "finish_reason": delta.finish_reason}
        if self.has_token_ids:
            choice["token_ids"] = list(delta.tokens)
            if is_first and not self.is_chat:
                choice["prompt_token_ids"] = list(self.prompt_ids)
        return self._body("chat.completion.chunk" if self.is_chat else "text_completion", [choice])

    def last_chunk(self, num_tokens: int, speculation: Speculation) -> dict[str, Any]:
        """For `include_usage`: without choices."""
        body = self._body("chat.completion.chunk" if self.is_chat else "text_completion", [])
        return body | self._accounts(num_tokens, speculation)

    def whole(self, deltas: Sequence[Delta], speculation: Speculation) -> dict[str, Any]:
        text = "".join(delta.text for delta in deltas)
        tokens = [token for delta in deltas for token in delta.tokens]
        choice: dict[str, Any] = {"index": 0}
        choice |= {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": deltas[-1].finish_reason}
        ids: dict[str, Any] = {}
        if self.has_token_ids:
            choice["token_ids"] = tokens
            (ids if self.is_chat else choice)["prompt_token_ids"] = list(self.prompt_ids)
        body = self._body("chat.completion" if self.is_chat else "text_completion", [choice])
        return body | ids | self._accounts(len(tokens), speculation)

    def usage(self, num_tokens: int) -> dict[str, Any]:
        num_prompt_tokens = len(self.prompt_ids)
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
        }

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": "dflashctl-reference",
            "choices": choices,
        }

    def _accounts(self, num_tokens: int, seen: Speculation) -> dict[str, Any]:
        usage = self.usage(num_tokens)
        if not seen.num_drafts:
            return {"usage": usage}
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": seen.num_accepted_tokens,
            "rejected_prediction_tokens": seen.num_draft_tokens - seen.num_accepted_tokens,
        }
        speculative = {
            "mean_acceptance_length": 1 + seen.num_accepted_tokens / seen.num_drafts,
            "draft_acceptance_rate": seen.num_accepted_tokens / seen.num_draft_tokens,
            "num_spec_steps": seen.num_drafts,
            "num_draft_tokens": seen.num_draft_tokens,
            "num_accepted_draft_tokens": seen.num_accepted_tokens,
            "accepted_per_position": list(seen.accepted_per_position),
        }
        return {"usage": usage, "metrics": {"speculative_decoding": speculative}}
