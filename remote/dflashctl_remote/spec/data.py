"""Data: the rows that people write, the jobs that read them, and the folder of token shards that training reads."""

from typing import Literal

from pydantic import Field

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.train import Device, Dtype


class Message(Spec):
    role: Literal["system", "user", "assistant"]
    content: str
    reasoning_content: str | None = None
    """What a server with a reasoning parser splits off an answer; the template puts it back."""


class GenerateSpec(Spec):
    """The target answers prompts, greedily."""

    target: str
    prompts: str
    """JSONL of rows {"id", "messages"}; the last message is the user's."""
    output: str
    """JSONL that is written: the same rows, each with the assistant's answer appended."""
    max_new_tokens: int = Field(default=128, gt=0)
    batch_size: int = Field(default=32, gt=0)
    skip_bad: bool = False
    device: Device = "auto"
    dtype: Dtype = "auto"
    num_threads: int | None = Field(default=None, gt=0)


class TokenizeSpec(Spec):
    target: str
    """Folder whose tokenizer and chat template are used."""
    input: str
    """JSONL of rows {"id", "messages", "category"?, "finish_reason"?}; assistant messages are what is trained on.

    A finish_reason of "length" says that the last answer was cut: no end-of-turn token is put after it.
    """
    output: str
    """Folder that is written; complete once it has a manifest."""
    max_length_tokens: int = Field(default=4096, gt=1)
    skip_bad: bool = False
    """Leave out malformed rows and count them, instead of stopping at the first."""


class DatasetInfo(Spec):
    """`about` of a dataset's manifest."""

    num_documents: int
    num_tokens: int
    num_supervised_tokens: int
    num_skipped_rows: int
    num_truncated: int
    max_document_tokens: int
    max_length_tokens: int
    """What documents were cut at."""
    target: str
    tokenizer_sha256: str
    template_sha256: str
    input_sha256: str


class InspectSpec(Spec):
    """Look into a dataset: totals, and chosen documents with what is trained on."""

    dataset: str
    target: str
    """Folder whose tokenizer decodes; must be the tokenizer that the dataset was made with."""
    documents: tuple[int, ...] = (0,)
    """Indices, from 0."""
    tokens_per_batch: int | None = Field(default=None, gt=0)
    """Also report how rows of this many tokens would be packed; None: don't."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the packing that is reported on."""
    output: str
    """JSON file that is written: an InspectReport."""


class MaskSpan(Spec):
    """Neighbouring tokens with the same two marks; the texts of a document's spans join to its text."""

    text: str
    num_tokens: int
    is_supervised: bool
    """The assistant wrote it: its tokens are labels."""
    is_anchor_candidate: bool
    """Supervised, and so is the token after it: a block may start here."""


class InspectDocument(Spec):
    index: int
    id: str
    category: str | None
    num_tokens: int
    num_supervised_tokens: int
    num_anchor_candidates: int
    spans: tuple[MaskSpan, ...]


class PackingReport(Spec):
    """The first epoch of packed rows."""

    tokens_per_batch: int
    num_rows: int
    fill_share: float
    """Real tokens / (rows * tokens_per_batch)."""
    padded_waste_share: float
    """Padding / tokens of the padded [B, Tmax] batches that the target runs."""


class InspectReport(Spec):
    schema_version: Literal[1] = 1
    dataset: str
    info: DatasetInfo
    supervised_share: float
    length_p50_tokens: int
    length_p90_tokens: int
    length_max_tokens: int
    categories: dict[str, int]
    """Documents of each category; "" for those without one."""
    packing: PackingReport | None
    documents: tuple[InspectDocument, ...]
