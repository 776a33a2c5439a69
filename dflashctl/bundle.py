"""The bundle as the operator's side sees it: which code a host is to run, and its name."""

from dflashctl_remote.spec.bundle import bundle_root, bundle_sha

__all__ = ["bundle_root", "bundle_sha"]
