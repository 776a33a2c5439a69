"""Data: the JSONL rows that people write, the jobs that read them, and the folder of token shards that training reads."""

from typing import Literal

from pydantic import Field

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.train import Device, Dtype


class Message(Spec):
    role: Literal["system", "user", "assistant"]
    content: str


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
    num_threads: int | None = None


class TokenizeSpec(Spec):
    target: str
    """Folder whose tokenizer and chat template are used."""
    input: str
    """JSONL of rows {"id", "messages", "category"?}; assistant messages are what is trained on."""
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
    target: str
    tokenizer_sha256: str
    template_sha256: str
    input_sha256: str
