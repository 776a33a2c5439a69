"""How fast and how small the relay's codec makes chunks of numbers: `python scripts/bench_codec.py`, one core.

Best of some rounds on one chunk of 8 MiB of each kind, with every coder that this interpreter has (zstandard and, in a
Python before 3.14, backports.zstd where installed). MB is 1e6 bytes of numbers before they are encoded; seconds are of
the CPU, so that what else runs costs little.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "remote")]

from dflashctl.transport.machine import describe_machine  # noqa: E402
from dflashctl_remote.relay import codec  # noqa: E402

CHUNK_BYTES = 8 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    if sys.version_info < (3, 14):
        with suppress(ImportError):
            sys.modules["compression.zstd"] = importlib.import_module("backports.zstd")
    print(f"{describe_machine()}; Python {sys.version.split()[0]}; best of {rounds}")
    print("\n| numbers | coder | after / before | encode MB/s | decode MB/s |\n|---|---|---|---|---|")
    for kind, (width, data, base) in samples().items():
        for name, coder in codec.coders().items():
            with only(name, coder) as method:
                stored = codec.encode(data, width, base, method=method)
                if codec.decode(stored, len(data), width, base) != data:
                    raise SystemExit(f"{name} does not give back {kind}")
                encode_s = best(lambda: codec.encode(data, width, base, method=method), rounds)  # noqa: B023
                decode_s = best(lambda: codec.decode(stored, len(data), width, base), rounds)  # noqa: B023
            speeds = " | ".join(f"{len(data) / seconds / 1e6:.0f}" for seconds in (encode_s, decode_s))
            print(f"| {kind} | {name} | {len(stored) / len(data):.3f} | {speeds} |", flush=True)
    return 0


def samples() -> dict[str, tuple[int, bytes, bytes | None]]:
    """Width, numbers and base: weights of N(0, 0.02), and the same after a step, of which the noise is given."""
    dice = np.random.default_rng(0)
    num = CHUNK_BYTES // 2
    weights = dice.normal(0, 0.02, num).astype(np.float32)
    step = dice.normal(0, 1, num).astype(np.float32)
    base = bf16(weights)
    after = {noise: bf16(weights + np.float32(noise) * step) for noise in (1e-3, 1e-4, 1e-5)}
    single = weights[: num // 2]
    return {
        "bf16": (2, base, None),
        **{f"bf16 against a base, noise {noise:g}": (2, data, base) for noise, data in after.items()},
        "bf16 against itself": (2, base, base),
        "fp32": (4, single.tobytes(), None),
        "fp32 against a base, noise 1e-05": (4, (single + 1e-5 * step[: num // 2]).tobytes(), single.tobytes()),
        "random bytes": (2, dice.bytes(CHUNK_BYTES), None),
    }


def bf16(numbers: np.ndarray) -> bytes:
    """Rounded to the nearest, ties to even."""
    bits = numbers.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


@contextmanager
def only(name: str, coder: codec.Coder) -> Iterator[str]:
    """Have the codec use this coder for its method."""
    method = "huffman" if name == "huffman" else "zstd"
    before = codec.LOADERS[method]
    codec.LOADERS[method] = {name: lambda: coder}
    codec.find_coder.cache_clear()
    try:
        yield method
    finally:
        codec.LOADERS[method] = before
        codec.find_coder.cache_clear()


def best(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start_s = time.process_time()
        call()
        times.append(time.process_time() - start_s)
    return min(times)


if __name__ == "__main__":
    raise SystemExit(main())
