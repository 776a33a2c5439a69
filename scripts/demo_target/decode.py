"""Generate answers for many prompts at once, greedily or sampled."""

from __future__ import annotations

import torch
from transformers import DynamicCache, Qwen3_5ForCausalLM


@torch.no_grad()
def generate(
    model: Qwen3_5ForCausalLM,
    prompts: list[list[int]],
    max_new_tokens: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """New tokens of each prompt, up to and including eos.

    Prompts are padded on the left. The mask zeroes what padding feeds to the recurrent layers, whose
    state therefore stays zero until the prompt starts; attention masks it as usual.
    """
    config, device = model.config, model.device
    longest = -(-max(map(len, prompts)) // 32) * 32  # few distinct widths: kernels are tuned for each
    ids_BT = torch.full((len(prompts), longest), config.pad_token_id)
    mask_BT = torch.zeros((len(prompts), longest + max_new_tokens), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids_BT[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask_BT[row, longest - len(prompt) :] = 1
    step_ids, mask_BT = ids_BT.to(device), mask_BT.to(device)
    positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)

    cache = DynamicCache(config=config)
    is_done_B = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    new_tokens: list[torch.Tensor] = []
    seen = 0
    for step in range(max_new_tokens):
        width = step_ids.shape[1]
        logits_BV = (
            model(
                input_ids=step_ids,
                attention_mask=mask_BT[:, : seen + width],
                position_ids=positions_BT[:, seen : seen + width],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            .logits[:, -1]
            .float()
        )
        seen += width
        token_B = _choose(logits_BV, temperature, generator)
        token_B = torch.where(is_done_B, config.pad_token_id, token_B)
        is_done_B |= token_B == config.eos_token_id
        new_tokens.append(token_B)
        step_ids = token_B[:, None]
        if step % 16 == 15 and bool(is_done_B.all()):
            break
    rows = torch.stack(new_tokens, 1).tolist()
    return [_through_eos(row, config.eos_token_id) for row in rows]


def _choose(logits_BV: torch.Tensor, temperature: float, generator: torch.Generator | None) -> torch.Tensor:
    if temperature == 0.0:
        return logits_BV.argmax(-1)
    return torch.multinomial((logits_BV / temperature).softmax(-1), 1, generator=generator)[:, 0]


def _through_eos(row: list[int], eos: int) -> list[int]:
    return row[: row.index(eos) + 1] if eos in row else row
