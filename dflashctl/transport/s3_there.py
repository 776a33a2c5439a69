"""What of a file is in the bucket already: a whole object, or parts of an upload that was begun. Changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dflashctl.transport.s3_bucket import Bucket, Listed, bare, composite_etag, sha256_in
from dflashctl.transport.s3_errors import Gone
from dflashctl.transport.s3_journal import Begun, Part
from dflashctl.transport.stores import StoredFile


@dataclass(frozen=True)
class There:
    etag: str | None = None
    """Of the whole object, if that is what would be written."""
    has_sha256: bool = False
    """In the object's metadata, or given when its upload was begun."""
    parts: dict[int, Part] = field(default_factory=dict)
    is_upload_gone: bool = False


def look(
    bucket: Bucket,
    file: StoredFile,
    key: str,
    where: str,
    *,
    listed: Listed | None,
    beside: Mapping[str, str],
    begun: Begun | None,
    sizes: Mapping[int, int],
) -> There:
    """`beside` is what the sidecar says of the file, `begun` what the journal does, `sizes` those of its parts."""
    if listed is not None and listed.size_bytes == file.size_bytes:
        whole = _whole(bucket, file, key, where, listed, beside, begun)
        if whole is not None:
            return whole
    if begun is None or begun.upload_id is None:
        return There()
    try:
        return There(has_sha256=begun.sha256 is not None, parts=_parts(bucket, key, where, begun, sizes))
    except Gone:
        return There(is_upload_gone=True)


def _whole(
    bucket: Bucket,
    file: StoredFile,
    key: str,
    where: str,
    listed: Listed,
    beside: Mapping[str, str],
    begun: Begun | None,
) -> There | None:
    """Known by our journal, else by its sha256, in the sidecar or the metadata."""
    if begun is not None:
        # Put together in an earlier try that ended before it wrote so down.
        composite = composite_etag([begun.parts[n].etag for n in sorted(begun.parts)]) if begun.parts else None
        if listed.etag in (begun.etag, composite):
            return There(listed.etag, has_sha256=begun.sha256 is not None)
    if file.sha256 is None:
        return None
    if beside.get("etag") == listed.etag and beside.get("sha256") == file.sha256:
        return There(listed.etag)
    head = bucket.ask_if_there(bucket.client.head_object, f"look at {where}", Key=key)
    if head is None or sha256_in(head) != file.sha256 or bucket.etag_in(head, f"look at {where}") != listed.etag:
        return None
    return There(listed.etag, has_sha256=True)


def _parts(bucket: Bucket, key: str, where: str, begun: Begun, sizes: Mapping[int, int]) -> dict[int, Part]:
    """What the store has of the upload; a part that the journal knows as another one, or of another size, is not there.

    Raises Gone: the store knows of no such upload.
    """
    kept = {}
    for page in bucket.pages("list_parts", f"list what was sent of {where}", Key=key, UploadId=begun.upload_id):
        for found in page.get("Parts", ()):
            number = int(found["PartNumber"]) - 1
            part = Part(bare(str(found["ETag"])), int(found["Size"]))
            known = begun.parts.get(number, part)
            if sizes.get(number) == part.size_bytes and known.etag == part.etag:
                kept[number] = known
    return kept
