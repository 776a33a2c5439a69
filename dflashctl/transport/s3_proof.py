"""Whether an object is what was sent: its size, its ETag where that tells, and what is read back of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from dflashctl.transport.s3_bucket import Bucket, Listed, composite_etag, sha256_in
from dflashctl.transport.s3_journal import Part

_READ_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Proof:
    etag: str
    has_sha256: bool
    """In the object's metadata, the right one."""
    problem: str | None = None
    """Why the object is not what was sent."""


@dataclass(frozen=True)
class Sent:
    key: str
    where: str
    """For people."""
    size_bytes: int
    sha256: str


def prove(
    bucket: Bucket, sent: Sent, listed: Listed | None, *, parts: Mapping[int, Part], part_bytes: int, md5: str | None
) -> Proof:
    """Of an object put at once `md5` is given, of one put together its `parts`.

    One put at once is proved by its ETag in `listed`, where that is the md5, and is else read back whole. One put
    together is proved by the beginnings of its first and last part, read back; where no part's beginning is known and
    the ETag does not tell, it is read back whole. Raises as Bucket.ask.
    """
    if listed is not None and md5 is not None and (listed.size_bytes, listed.etag) == (sent.size_bytes, md5):
        return Proof(listed.etag, has_sha256=True)
    head = bucket.ask_if_there(bucket.client.head_object, f"look at {sent.where}", Key=sent.key)
    if head is None:
        return Proof("", has_sha256=False, problem="it is not there")
    etag = bucket.etag_in(head, f"look at {sent.where}")
    size_bytes, kept = int(head["ContentLength"]), sha256_in(head)
    problem = None
    if size_bytes != sent.size_bytes:
        problem = f"it has {size_bytes} bytes, {sent.size_bytes} were sent"
    elif kept not in (None, sent.sha256):
        problem = "its metadata have another sha256"
    else:
        problem = _differs(bucket, sent, etag, parts, part_bytes)
    return Proof(etag, has_sha256=kept == sent.sha256, problem=problem)


def _differs(bucket: Bucket, sent: Sent, etag: str, parts: Mapping[int, Part], part_bytes: int) -> str | None:
    samples = [(n * part_bytes, parts[n].sample) for n in sorted(parts)]
    known = [(offset, sample) for offset, sample in samples if sample is not None]
    is_told = etag == composite_etag([parts[n].etag for n in sorted(parts)])
    if not known and not is_told:
        return None if _sha256_of(bucket, sent, etag) == sent.sha256 else "read back, its sha256 is another"
    for offset, (length, sha256) in {known[0], known[-1]} if known else ():
        data = bucket.read(sent.key, f"read back {sent.where}", etag=etag, offset=offset, length=length)
        if hashlib.sha256(data).hexdigest() != sha256:
            return f"{length} bytes read back from {offset} on differ from those that were sent"
    return None


def _sha256_of(bucket: Bucket, sent: Sent, etag: str) -> str:
    found = hashlib.sha256()
    for offset in range(0, sent.size_bytes, _READ_BYTES):
        length = min(_READ_BYTES, sent.size_bytes - offset)
        found.update(bucket.read(sent.key, f"read back {sent.where}", etag=etag, offset=offset, length=length))
    return found.hexdigest()
