import pytest

from dflashctl.errors import ArtifactError
from dflashctl.stages.bench.account import EndRecord, Journal, read_journal


def test_lines_read_back_as_they_were_written(tmp_path, benchmark_lines):
    lines = tuple(benchmark_lines())
    journal = Journal(tmp_path)
    for line in lines:
        journal.append(line)
    assert read_journal(tmp_path) == lines


def test_a_text_with_other_line_ends_stays_one_line(tmp_path, request_record):
    line = request_record(text="a\u2028b\u0085c\rd")
    Journal(tmp_path).append(line)
    assert read_journal(tmp_path) == (line,)


def test_half_a_line_of_a_killed_process_is_dropped(tmp_path):
    journal = Journal(tmp_path)
    journal.append(EndRecord(segment=0, ended_s=1.0))
    with journal.path.open("a") as file:
        file.write('{"kind": "request", "seg')
    assert len(read_journal(tmp_path)) == 1
    Journal(tmp_path).append(EndRecord(segment=1, ended_s=2.0))
    assert [line.segment for line in read_journal(tmp_path)] == [0, 1]


def test_a_line_of_something_else_is_named(tmp_path):
    Journal(tmp_path).path.write_text('{"kind": "end", "segment": 0, "ended_s": 1}\n{"kind": "other"}\n')
    with pytest.raises(ArtifactError, match=r"requests\.jsonl:2 is not a line"):
        read_journal(tmp_path)


def test_a_folder_without_a_benchmark_is_a_sentence(tmp_path):
    with pytest.raises(ArtifactError, match="no benchmark at"):
        read_journal(tmp_path)
