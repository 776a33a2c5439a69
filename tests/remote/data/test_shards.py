import json

import numpy as np
import pytest

from dflashctl_remote.data.shards import Dataset, Document, ShardWriter, anchor_candidates, first_anchor
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.errors import ArtifactCorrupt, ArtifactIncomplete, BadInput
from dflashctl_remote.spec.manifest import MANIFEST_NAME, write_manifest


def document(num_tokens, *, supervised_from=0, name="d", category=None):
    positions = np.arange(num_tokens)
    return Document(positions * 7 % 4096, positions >= supervised_from, name, category)


def write(folder, documents, *, shard_tokens=1 << 24):
    folder.mkdir()
    with ShardWriter(folder, shard_tokens=shard_tokens) as writer:
        for one in documents:
            writer.add(one)
    info = DatasetInfo(
        num_documents=writer.num_documents,
        num_tokens=writer.num_tokens,
        num_supervised_tokens=writer.num_supervised,
        num_skipped_rows=0,
        num_truncated=0,
        max_document_tokens=writer.max_document_tokens,
        max_length_tokens=100,
        target="t",
        tokenizer_sha256="0",
        template_sha256="0",
        input_sha256="0",
    )
    write_manifest(folder, "dataset", bundle_sha="0", about=info.model_dump())
    return folder


def test_documents_come_back_as_they_were_written_across_shards(tmp_path):
    written = [document(n, supervised_from=2, name=f"d{n}", category=c) for n, c in [(5, "a"), (9, None), (3, "b")]]
    dataset = Dataset.open(write(tmp_path / "d", written, shard_tokens=10), verify_content=True)
    assert len(list((tmp_path / "d").glob("shard-*"))) == 2
    assert dataset.lengths.tolist() == [5, 9, 3]
    for index, wanted in enumerate(written):
        found = dataset.document(index)
        assert found.input_ids.tolist() == wanted.input_ids.tolist()
        assert found.is_supervised.tolist() == wanted.is_supervised.tolist()
        assert (found.id, found.category) == (wanted.id, wanted.category)


def test_ids_above_sixteen_bits_survive(tmp_path):
    one = Document(np.array([248_319, 2**32 - 1]), np.array([True, True]))
    assert Dataset.open(write(tmp_path / "d", [one])).document(0).input_ids.tolist() == [248_319, 2**32 - 1]


def test_first_tokens_of_a_document_end_where_asked(tmp_path):
    dataset = Dataset.open(write(tmp_path / "d", [document(5), document(9)]))
    assert len(dataset.tokens(0, max_tokens=3).input_ids) == 3
    assert len(dataset.tokens(1, max_tokens=30).input_ids) == 9


def test_first_anchor_of_every_document_is_kept(tmp_path):
    written = [document(5, supervised_from=2), document(5, supervised_from=4)]
    assert Dataset.open(write(tmp_path / "d", written)).first_anchors.tolist() == [2, -1]


def test_document_that_is_not_there_is_refused(tmp_path):
    dataset = Dataset.open(write(tmp_path / "d", [document(5)]))
    with pytest.raises(BadInput, match=r"wanted document 1 of .*, which has 0 to 0"):
        dataset.document(1)


def test_folder_without_manifest_is_incomplete(tmp_path):
    (write(tmp_path / "d", [document(5)]) / MANIFEST_NAME).unlink()
    with pytest.raises(ArtifactIncomplete):
        Dataset.open(tmp_path / "d")


def test_file_of_another_size_is_corrupt(tmp_path):
    folder = write(tmp_path / "d", [document(5)])
    with (folder / "documents.jsonl").open("a") as file:
        file.write("x")
    with pytest.raises(ArtifactCorrupt, match=r"documents\.jsonl has"):
        Dataset.open(folder)


@pytest.mark.parametrize("name", ["tokens.npy", "supervised.npy"])
def test_a_file_that_is_cut_short_while_it_is_mapped_is_told_and_never_read_as_zeros(tmp_path, name):
    dataset = Dataset.open(write(tmp_path / "d", [document(5)]))
    (path,) = tmp_path.rglob(f"shard-00000/{name}")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(ArtifactCorrupt, match=rf"{name} has \d+ bytes, and had \d+ when it was opened"):
        dataset.tokens(0)


def test_changed_byte_is_found_when_content_is_verified(tmp_path):
    folder = write(tmp_path / "d", [document(5)])
    path = folder / "shard-00000" / "tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    Dataset.open(folder)
    with pytest.raises(ArtifactCorrupt, match=r"tokens\.npy differs from its sha256"):
        Dataset.open(folder, verify_content=True)


def test_manifest_that_counts_other_documents_is_corrupt(tmp_path):
    folder = write(tmp_path / "d", [document(5)])
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    manifest["about"]["num_documents"] = 2
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactCorrupt, match="says 2 documents of 5 tokens, the shards hold 1 of 5"):
        Dataset.open(folder)


@pytest.mark.parametrize(
    ("supervised", "candidates"),
    [([0, 1, 1, 0, 1, 0, 1, 1], [0, 1, 0, 0, 0, 0, 1, 0]), ([1], [0]), ([0, 0], [0, 0])],
)
def test_block_may_start_where_this_token_and_the_next_are_supervised(supervised, candidates):
    mask = np.array(supervised, np.bool_)
    assert anchor_candidates(mask).tolist() == [bool(c) for c in candidates]
    assert first_anchor(mask) == (candidates.index(1) if any(candidates) else -1)
