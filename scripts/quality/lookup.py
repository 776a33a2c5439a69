"""What a table of the training answers would have had accepted, and whether a held-out prompt is among them.

Here and not in the evaluation: it needs no GPU, and the answers are the same whoever drafts.
"""

from pathlib import Path

import numpy as np

from dflashctl_remote.data.chat import ChatTokenizer
from dflashctl_remote.data.rows import read_prompts
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.evaluate.answers import Answer
from dflashctl_remote.evaluate.lookup import BigramTable, accepted_per_step


def with_table(answers: list[Answer], target: Path, work: Path, block_size: int) -> tuple[list[Answer], int]:
    """The answers with their table's steps, and how many held-out prompts precede an answer of the dataset."""
    chat = ChatTokenizer.open(target)
    prompts = {row.id: chat.prompt_ids(row.messages) for row in read_prompts(work / "prompts-held-out.jsonl")}
    dataset = Dataset.open(work / "dataset")
    documents = [dataset.tokens(index) for index in range(len(dataset))]
    table = BigramTable((document.input_ids, document.is_supervised) for document in documents)
    seen = {tuple(d.input_ids[: int(np.argmax(d.is_supervised))].tolist()) for d in documents}
    filled = [
        answer.model_copy(
            update={
                "table_per_step": tuple(
                    accepted_per_step(table, prompts[answer.id], answer.tokens, block_size=block_size)
                )
            }
        )
        for answer in answers
    ]
    return filled, sum(tuple(ids) in seen for ids in prompts.values())
