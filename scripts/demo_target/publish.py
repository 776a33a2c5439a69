"""Put trained weights into the demo target's folder, in bf16 and beside the tokenizer that is there.

Two checkpoints of one run may be blended: between an early and a late round against loops, loops
fade sooner than variety does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3_5ForCausalLM

from scripts.demo_target.model import model_config, write_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="a file written by train.py")
    parser.add_argument("--blend-with", type=Path, help="another such file, of the same run")
    parser.add_argument("--share", type=float, default=0.35, help="of the other file in the blend")
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    model = Qwen3_5ForCausalLM(model_config(AutoTokenizer.from_pretrained(args.folder)))
    weights = load_file(args.weights)
    if args.blend_with:
        other = load_file(args.blend_with)
        weights = {name: (1 - args.share) * w + args.share * other[name] for name, w in weights.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    write_model(model, args.folder)


if __name__ == "__main__":
    main()
