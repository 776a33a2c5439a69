"""Documents that are kept out of training: drawn once by a seed, with everything that shares their prompt."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflashctl_remote.data.shards import Dataset

_TURN = "#turn-"
"""What `data tokenize` puts between a row's id and the turn where a conversation became several documents."""


@dataclass(frozen=True)
class Split:
    """Indices into the training dataset, rising."""

    held_out: npt.NDArray[np.int64]
    excluded: npt.NDArray[np.int64]
    """The held-out ones and all others of their conversations or prompts: none of these is trained on."""


def split(dataset: Dataset, *, share: float, max_documents: int, max_length_tokens: int, seed: int) -> Split:
    """Hold out floor(share * documents), at most `max_documents`, of those in which a block can start.

    A function of (dataset, share, max_documents, max_length_tokens, seed): a resumed run splits as the unbroken one.
    """
    num = min(max_documents, int(share * len(dataset)))
    usable = _usable(dataset, max_length_tokens)
    held_out = np.sort(usable[_order(len(usable), seed)[:num]])
    if not len(held_out):
        return Split(held_out, held_out)
    names = np.array([name.partition(_TURN)[0] for name, _ in dataset.names])
    same_row = np.flatnonzero(np.isin(names, names[held_out]))
    return Split(held_out, np.union1d(same_row, with_prompts_of(dataset, dataset, held_out)))


def choose(dataset: Dataset, *, max_documents: int, max_length_tokens: int, seed: int) -> npt.NDArray[np.int64]:
    """Of a dataset that is held out as a whole: at most `max_documents` in which a block can start, rising."""
    usable = _usable(dataset, max_length_tokens)
    return np.sort(usable[_order(len(usable), seed)[:max_documents]])


def with_prompts_of(dataset: Dataset, other: Dataset, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Documents of `dataset` that begin with the very prompt of one of these of `other`, rising."""
    prompts = {first_prompt(other, int(index)) for index in documents}
    # Only prompts of the same lengths are read: 900,000 documents take seconds, not minutes.
    candidates = np.flatnonzero(np.isin(dataset.first_anchors, [len(prompt) for prompt in prompts]))
    same = [index for index in candidates.tolist() if first_prompt(dataset, index) in prompts]
    return np.array(same, np.int64)


def first_prompt(dataset: Dataset, index: int) -> tuple[int, ...]:
    """Tokens before the first place where a block can start: those before the first answer."""
    num_tokens = max(0, int(dataset.first_anchors[index]))
    return tuple(dataset.tokens(index, max_tokens=num_tokens).input_ids.tolist())


def _usable(dataset: Dataset, max_length_tokens: int) -> npt.NDArray[np.int64]:
    ends = np.minimum(dataset.lengths, max_length_tokens)
    return np.flatnonzero((dataset.first_anchors > 0) & (dataset.first_anchors + 1 < ends))


def _order(count: int, seed: int) -> npt.NDArray[np.int64]:
    """A permutation from Philox' raw output, whose stream is the same in every numpy version."""
    raw = np.random.Philox(key=np.array([seed, 2**64 - 1], np.uint64)).random_raw(count)
    return np.argsort(raw, kind="stable")
