"""What a dataset holds, for people: totals, and documents as text with the marks of what is trained on."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dflashctl_remote.data.chat import load_tokenizer, tokenizer_sha256
from dflashctl_remote.data.loader import BatchPlan
from dflashctl_remote.data.shards import Dataset, anchor_candidates
from dflashctl_remote.spec.data import InspectDocument, InspectReport, InspectSpec, MaskSpan, PackingReport
from dflashctl_remote.spec.errors import BadInput

_REPLACEMENT = "\ufffd"


def inspect(spec: InspectSpec) -> InspectReport:
    """Raises BadInput if the target's tokenizer is not the dataset's, or a document isn't there."""
    dataset = Dataset.open(Path(spec.dataset))
    target = Path(spec.target)
    tokenizer = load_tokenizer(target)
    if tokenizer_sha256(target) != dataset.info.tokenizer_sha256:
        raise BadInput(
            f"{dataset.folder} was made with the tokenizer of {dataset.info.target}, found another in {target}",
            hint="give the target that the dataset was made for",
        )
    p50, p90 = np.percentile(dataset.lengths, [50, 90], method="inverted_cdf")
    return InspectReport(
        dataset=spec.dataset,
        info=dataset.info,
        supervised_share=dataset.info.num_supervised_tokens / dataset.info.num_tokens,
        length_p50_tokens=int(p50),
        length_p90_tokens=int(p90),
        length_max_tokens=int(dataset.lengths.max()),
        categories=dict(Counter(category or "" for _, category in dataset.names).most_common()),
        packing=_packing(dataset, spec),
        documents=tuple(_document(dataset, index, tokenizer) for index in spec.documents),
    )


def mask_spans(
    input_ids: npt.NDArray[Any], is_supervised: npt.NDArray[np.bool_], tokenizer: Any
) -> tuple[MaskSpan, ...]:
    """Neighbouring tokens of the same marks as one text each.

    The bytes of one character may lie on both sides of a boundary: the character then stands in the later span.
    """
    candidates = anchor_candidates(is_supervised)
    changes = np.flatnonzero((np.diff(is_supervised) != 0) | (np.diff(candidates) != 0)) + 1
    ends = [*changes.tolist(), len(input_ids)]
    spans = []
    start, shown = 0, 0
    for end in ends:
        text = tokenizer.decode(input_ids[:end].tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        whole = text if end == ends[-1] else text.rstrip(_REPLACEMENT)
        spans.append(
            MaskSpan(
                text=whole[shown:],
                num_tokens=end - start,
                is_supervised=bool(is_supervised[start]),
                is_anchor_candidate=bool(candidates[start]),
            )
        )
        start, shown = end, max(shown, len(whole))
    return tuple(spans)


def _document(dataset: Dataset, index: int, tokenizer: Any) -> InspectDocument:
    document = dataset.document(index)
    return InspectDocument(
        index=index,
        id=document.id,
        category=document.category,
        num_tokens=len(document.input_ids),
        num_supervised_tokens=int(document.is_supervised.sum()),
        num_anchor_candidates=int(anchor_candidates(document.is_supervised).sum()),
        spans=mask_spans(document.input_ids, document.is_supervised, tokenizer),
    )


def _packing(dataset: Dataset, spec: InspectSpec) -> PackingReport | None:
    if spec.tokens_per_batch is None:
        return None
    plan = BatchPlan(
        dataset,
        tokens_per_batch=spec.tokens_per_batch,
        max_length_tokens=dataset.info.max_length_tokens,
        seed=spec.seed,
    )
    return plan.packing()
