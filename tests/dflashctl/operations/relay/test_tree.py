from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dflashctl.operations.relay.tree import (
    CHUNK_BYTES,
    MOST_PIECES,
    OWN_CHUNK_BYTES,
    Chunk,
    Frontier,
    Known,
    Place,
    SourceFile,
    Tensor,
    Tree,
    cut,
)

MIB = 1 << 20


def file(path, size, *tensors, inode=1):
    return SourceFile(path, size, 100, inode, 0o644, tuple(tensors))


def tree(*files):
    return Tree("/root", False, files)


def covered(made, chunks):
    """Of each file the pieces in order, which must be all of it, once."""
    pieces = {}
    for index, offset, length in sorted(piece for chunk in chunks for piece in chunk.pieces):
        assert (offset, length > 0) == (pieces.get(index, 0), True)
        pieces[index] = offset + length
    assert [pieces.get(index, 0) for index in range(len(made.files))] == [one.size for one in made.files]
    return True


SIZES = st.one_of(st.integers(0, 5000), st.integers(OWN_CHUNK_BYTES - 2, OWN_CHUNK_BYTES + 2), st.integers(0, 40 * MIB))


@given(st.lists(SIZES, max_size=30))
def test_chunks_cover_every_byte_once_and_none_is_too_large(sizes):
    made = tree(*(file(f"f{number:03d}", size) for number, size in enumerate(sizes)))
    chunks = cut(made, "a")
    assert covered(made, chunks)
    assert all(sum(length for _, _, length in chunk.pieces) == chunk.size <= CHUNK_BYTES for chunk in chunks)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert len({chunk.key for chunk in chunks}) == len(chunks)


@given(st.lists(SIZES, min_size=1, max_size=12), st.data())
def test_a_file_that_changes_leaves_the_chunks_of_others_as_they_were(sizes, data):
    files = [file(f"f{number:03d}", size) for number, size in enumerate(sizes)]
    index = data.draw(st.integers(0, len(files) - 1))
    before = cut(tree(*files), "a")
    files[index] = replace(files[index], mtime_ns=101)
    after = cut(tree(*files), "a")
    without = {chunk.key for chunk in before if all(piece[0] != index for piece in chunk.pieces)}
    assert without == {chunk.key for chunk in after if all(piece[0] != index for piece in chunk.pieces)}
    with_it = {chunk.key for chunk in before} - without
    assert not with_it & {chunk.key for chunk in after}


def test_a_large_file_that_grows_or_goes_leaves_the_chunks_of_others_as_they_were():
    small = [file(f"s{number}", 1000) for number in range(10)]
    large = [file("l1", 20 * MIB), file("l2", 3 * MIB)]
    keys = {chunk.key for chunk in cut(tree(*small, *large), "a")}
    grown = {chunk.key for chunk in cut(tree(*small, file("l1", 30 * MIB), large[1]), "a")}
    assert len(keys & grown) == 2
    gone = {chunk.key for chunk in cut(tree(*small, large[0]), "a")}
    assert gone < keys


def test_chunks_from_elsewhere_are_others():
    made = tree(file("a", 10))
    keys = [cut(made, "here")[0].key, cut(made, "there")[0].key, cut(replace(made, root="/other"), "here")[0].key]
    assert len(set(keys)) == 3


def test_ten_thousand_small_files_are_a_few_chunks():
    made = tree(*(file(f"{number:05d}", 100) for number in range(10_000)))
    chunks = cut(made, "a")
    assert len(chunks) == -(-10_000 // MOST_PIECES)
    assert covered(made, chunks)


def test_small_files_share_no_chunk_with_a_large_one():
    made = tree(file("a", 10), file("b", 3 * MIB), file("c", 10))
    assert [[piece[0] for piece in chunk.pieces] for chunk in cut(made, "a")] == [[0], [1], [2]]


def test_empty_files_need_no_chunk():
    assert cut(tree(file("a", 0), file("b", 0)), "a") == ()


TENSORS = (Tensor(2, 100, 20 * MIB, "x", "BF16"), Tensor(4, 100 + 20 * MIB, MIB, "y", "F32"))
WITH_TENSORS = file("m.safetensors", 100 + 21 * MIB + 7, *TENSORS)


def test_a_chunk_has_elements_of_one_width():
    chunks = cut(tree(WITH_TENSORS), "a")
    assert covered(tree(WITH_TENSORS), chunks)
    assert [(chunk.width, chunk.size) for chunk in chunks] == [
        (1, 100),
        (2, CHUNK_BYTES),
        (2, CHUNK_BYTES),
        (2, 4 * MIB),
        (4, MIB),
        (1, 7),
    ]


def test_pieces_of_known_tensors_know_where_the_same_bytes_lie_at_either_end():
    same = {("m.safetensors", "y"): Place("", 0, "/there/old", 5000)}
    base = {("m.safetensors", "x"): Place("/here/old", 200, "/there/old", 300)}
    chunks = cut(tree(WITH_TENSORS), "a", Known(same, {}, base))
    assert [chunk.kind for chunk in chunks] == ["plain", "base", "base", "base", "same", "plain"]
    assert [chunk.source_bases() for chunk in chunks[1:4]] == [
        [("/here/old", 200 + number * CHUNK_BYTES, min(CHUNK_BYTES, 20 * MIB - number * CHUNK_BYTES))]
        for number in range(3)
    ]
    assert chunks[3].target_bases() == [("/there/old", 300 + 2 * CHUNK_BYTES, 4 * MIB)]
    assert chunks[4].target_bases() == [("/there/old", 5000, MIB)]
    assert covered(tree(WITH_TENSORS), chunks)


def test_a_file_that_is_there_whole_is_copied_without_a_look_at_its_tensors():
    known = Known(whole={("m.safetensors", ""): Place("", 0, "/there/m", 0)})
    chunks = cut(tree(WITH_TENSORS), "a", known)
    assert {chunk.kind for chunk in chunks} == {"same"}
    assert covered(tree(WITH_TENSORS), chunks)


def test_what_is_known_of_the_target_changes_how_a_chunk_is_sent_and_not_its_key():
    """So that a later try, which knows another checkpoint, goes on with what came."""
    base = {("m.safetensors", "x"): Place("/here/old", 200, "/there/old", 300)}
    plain, known = cut(tree(WITH_TENSORS), "a"), cut(tree(WITH_TENSORS), "a", Known({}, {}, base))
    assert [chunk.key for chunk in plain] == [chunk.key for chunk in known]


def chunk_of(number, *pieces):
    return Chunk(number, str(number), pieces, 1, sum(length for _, _, length in pieces), "plain")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_a_frontier_moves_only_over_what_has_come_without_a_gap(lengths, random):
    total = sum(lengths)
    frontier, come, told = Frontier(tree(file("a", total))), set(), 0
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    order = list(range(len(lengths)))
    random.shuffle(order)
    for number in order:
        come |= set(range(starts[number], starts[number] + lengths[number]))
        without_gap = next((at for at in range(total) if at not in come), total)
        moved = frontier.add(chunk_of(number, (0, starts[number], lengths[number])))
        assert moved == ([("a", without_gap)] if without_gap > told else [])
        told = without_gap
    assert told == total


def test_a_frontier_tells_each_file_of_a_chunk():
    frontier = Frontier(tree(file("a", 10), file("b", 20), file("c", 5)))
    assert frontier.add(chunk_of(0, (0, 0, 10), (1, 10, 10), (2, 0, 5))) == [("a", 10), ("c", 5)]
    assert frontier.add(chunk_of(1, (1, 0, 10))) == [("b", 20)]
