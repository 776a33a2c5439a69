"""Batches of token ids from what `encode.py` wrote. Not for tokenising."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

IGNORED = -100


@dataclass(frozen=True)
class ChatSplit:
    """Samples as lists of ids; the first `num_prompt[i]` ids of sample i are its prompt."""

    samples: list[list[int]]
    num_prompt: list[int]

    def prompts(self) -> list[list[int]]:
        return [s[:n] for s, n in zip(self.samples, self.num_prompt, strict=True)]


def read_code(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "code.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def read_chat(folder: Path) -> dict[str, ChatSplit]:
    """The three splits; raises KeyError where the file lacks one."""
    chat = {}
    with np.load(folder / "chat.npz") as arrays:
        for split in ("train", "valid", "heldout"):
            ends = np.cumsum(arrays[f"{split}_lengths"].astype(np.int64))
            samples = [part.tolist() for part in np.split(arrays[split], ends[:-1])]
            chat[split] = ChatSplit(samples, arrays[f"{split}_prompts"].tolist())
    return chat


def code_windows(stream: torch.Tensor, num_rows: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """[B, T] windows at random places of a stream on the device; the generator lives there too."""
    starts = torch.randint(len(stream) - length, (num_rows, 1), generator=generator, device=stream.device)
    return stream[starts + torch.arange(length, device=stream.device)].long()


def padded_rows(
    samples: list[list[int]], num_prompt: list[int], pad: int, device: torch.device, multiple: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids [B, T] and labels [B, T] (IGNORED on prompt and padding), T a multiple.

    Right padding needs no mask: every layer is causal, so no real token sees it.
    """
    longest = max(map(len, samples))
    length = -(-longest // multiple) * multiple
    ids_BT = torch.full((len(samples), length), pad)
    labels_BT = torch.full((len(samples), length), IGNORED)
    for row, (sample, prompt) in enumerate(zip(samples, num_prompt, strict=True)):
        tokens = torch.tensor(sample)
        ids_BT[row, : len(sample)] = tokens
        labels_BT[row, prompt : len(sample)] = tokens[prompt:]
    return ids_BT.to(device), labels_BT.to(device)
