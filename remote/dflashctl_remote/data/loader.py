"""Which documents share a row, in which order: a pure function of lengths and seed, the same on every machine.

An epoch is shuffled, cut into windows of some rows, and each window is packed longest first, so that the documents of
a row have similar lengths: the target runs them as a padded batch, and padding there is compute thrown away.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflashctl_remote.data.pack import PackedRow, pack
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.spec.data import PackingReport
from dflashctl_remote.spec.errors import BadInput

_WINDOW_ROWS = 64
# A document fills up a row only if it is at least this long beside the row's longest. 40,000 log-normal lengths of
# mean 1,877 cut at 4,096, rows of 8,192: 0 fills 98.7 % and pads 9.6 % of the target's batch, 0.5 95.6 % and 3.9 %,
# 0.85 87.4 % and 1.3 %.
_MIN_LENGTH_SHARE = 0.5


@dataclass(frozen=True)
class _Epoch:
    documents: npt.NDArray[np.int64]
    """Of all rows, one after the other."""
    row_starts: npt.NDArray[np.int64]
    """Row i holds documents[row_starts[i] : row_starts[i + 1]]."""

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    def row(self, index: int) -> npt.NDArray[np.int64]:
        return self.documents[self.row_starts[index] : self.row_starts[index + 1]]


class BatchPlan:
    """Rows of an endless run: every usable document once an epoch. The batch number is the whole state.

    A document longer than `max_length_tokens` or a row is cut there (`num_cut`); one in which no block can start after
    that is left out (`num_unusable`), and so are the `excluded` ones, by index. Raises BadInput if none is left.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        tokens_per_batch: int,
        max_length_tokens: int,
        seed: int,
        excluded: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._dataset = dataset
        self._tokens_per_batch = tokens_per_batch
        self._seed = seed
        self.max_length_tokens = min(max_length_tokens, tokens_per_batch)
        self._lengths = np.minimum(dataset.lengths, self.max_length_tokens)
        has_anchor = (dataset.first_anchors >= 0) & (dataset.first_anchors + 1 < self._lengths)
        is_offered = np.ones(len(dataset), np.bool_)
        is_offered[[] if excluded is None else excluded] = False
        self._usable = np.flatnonzero(has_anchor & is_offered)
        self.num_cut = int((dataset.lengths[self._usable] > self.max_length_tokens).sum())
        self.num_unusable = int((~has_anchor & is_offered).sum())
        if not len(self._usable):
            raise BadInput(
                f"wanted documents to train on in {dataset.folder}, found none of {len(dataset)} with two supervised "
                f"tokens in a row within the first {self.max_length_tokens}",
                hint="raise max_length_tokens and tokens_per_batch, or look with `dflashctl data inspect`",
            )
        self._first_batches = [0]
        self._epochs: dict[int, _Epoch] = {}

    def row(self, batch: int) -> PackedRow:
        """The row of a batch, counted from 0 over all epochs."""
        documents = self.documents_of(batch)
        tokens = [self._dataset.tokens(int(i), max_tokens=self.max_length_tokens) for i in documents]
        return pack(tokens, self._tokens_per_batch)

    def documents_of(self, batch: int) -> npt.NDArray[np.int64]:
        """Indices into the dataset of the documents in a batch's row, in row order."""
        epoch = self._epoch_number(batch)
        return self._epoch(epoch).row(batch - self._first_batches[epoch])

    def epoch_of(self, batch: int) -> float:
        """Epochs that are done before this batch; 1.5 is half-way through the second."""
        epoch = self._epoch_number(batch)
        first = self._first_batches[epoch]
        return epoch + (batch - first) / (self._first_batches[epoch + 1] - first)

    def packing(self) -> PackingReport:
        """How well the first epoch fills its rows."""
        epoch = self._epoch(0)
        lengths = [self._lengths[epoch.row(i)] for i in range(len(epoch))]
        num_real = sum(int(row.sum()) for row in lengths)
        num_padded = sum(len(row) * int(row.max()) for row in lengths)
        return PackingReport(
            tokens_per_batch=self._tokens_per_batch,
            num_rows=len(epoch),
            fill_share=num_real / (len(epoch) * self._tokens_per_batch),
            padded_waste_share=1 - num_real / num_padded,
        )

    def _epoch_number(self, batch: int) -> int:
        assert batch >= 0
        while self._first_batches[-1] <= batch:
            epoch = len(self._first_batches) - 1
            self._first_batches.append(self._first_batches[-1] + len(self._epoch(epoch)))
        return bisect_right(self._first_batches, batch) - 1

    def _epoch(self, number: int) -> _Epoch:
        if number not in self._epochs:
            # The loader moves forward; one epoch back is kept for whoever looks across the boundary.
            self._epochs = {n: e for n, e in self._epochs.items() if n == number - 1}
            self._epochs[number] = self._plan(number)
        return self._epochs[number]

    def _plan(self, number: int) -> _Epoch:
        shuffled = self._usable[_shuffle(len(self._usable), self._seed, number, purpose=0)]
        lengths = self._lengths[shuffled]
        window_of = (np.cumsum(lengths) - lengths) // (_WINDOW_ROWS * self._tokens_per_batch)
        rows: list[list[int]] = []
        for window in np.split(shuffled, np.flatnonzero(np.diff(window_of)) + 1):
            rows.extend(self._fill(window))
        in_order = [rows[i] for i in _shuffle(len(rows), self._seed, number, purpose=1)]
        starts = np.cumsum([0, *map(len, in_order)], dtype=np.int64)
        return _Epoch(np.array([i for row in in_order for i in row], np.int64), starts)

    def _fill(self, window: npt.NDArray[np.int64]) -> Iterator[list[int]]:
        by_length = window[np.argsort(self._lengths[window], kind="stable")]
        documents, lengths = by_length.tolist(), self._lengths[by_length].tolist()
        while documents:
            longest = lengths.pop()
            row, room = [documents.pop()], self._tokens_per_batch - longest
            while (fitting := bisect_right(lengths, room) - 1) >= 0:
                if lengths[fitting] < _MIN_LENGTH_SHARE * longest:
                    break
                row.append(documents.pop(fitting))
                room -= lengths.pop(fitting)
            yield row


def _shuffle(count: int, seed: int, epoch: int, *, purpose: int) -> npt.NDArray[np.int64]:
    """A permutation from Philox' raw output, whose stream is the same in every numpy version; Generator's isn't."""
    key = np.array([seed % 2**64, epoch * 2 + purpose], np.uint64)
    raw = np.random.Philox(key=key).random_raw(count)
    return np.argsort(raw, kind="stable")
