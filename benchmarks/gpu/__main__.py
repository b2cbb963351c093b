"""python -m benchmarks.gpu check | measure | train | pack | join"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a step; 1 where it has found a defect, 2 for what it cannot work with, else 0."""
    options = _parser().parse_args(arguments)
    from forerun.errors import ForerunError

    try:
        return _run(options)
    except ForerunError as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    if options.step == "pack":
        from benchmarks.gpu.tokens import pack

        for path in pack(options.data, Path(options.file), options.part_bytes):
            print(path)
        return 0
    if options.step == "join":
        from benchmarks.gpu.parts import join_parts

        print(join_parts(options.parts, Path(options.file), options.sha256))
        return 0
    from benchmarks.gpu.output import Output

    output = Output(options.step, Path(options.out), options.seconds)
    if options.step == "check":
        from benchmarks.gpu.check import check

        return check(options, output)
    if options.step == "measure":
        from benchmarks.gpu.measure import measure

        return measure(options, output)
    from benchmarks.gpu.train import train

    return train(options, output)


def _parser() -> argparse.ArgumentParser:
    from benchmarks.gpu.parts import SMOLLM2_SHA256
    from benchmarks.gpu.tokens import PART_BYTES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    parents = argparse.ArgumentParser(add_help=False)
    parents.add_argument("--seconds", type=float, default=300.0, help="after which the step ends")
    parents.add_argument("--out", required=True, help="folder of results: 8 files of 16 MB at most")
    parents.add_argument("--device", default=None, help="cuda; with --tiny cpu")
    parents.add_argument("--tiny", action="store_true", help="all of it, tiny, on the CPU")

    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("--model", help="SmolLM2's GGUF file, or another checkpoint")
    model.add_argument("--model-parts", nargs="+", default=(), help="its parts, or their beginning")
    model.add_argument("--sha256", default=SMOLLM2_SHA256, help="checksum of the joined parts")
    model.add_argument("--work", help="folder of what need not come back; left out, OUT-work")

    check = steps.add_parser("check", parents=[parents], help="run the tests marked gpu")
    check.add_argument(
        "--select", default="", help="of the tests alone those that pytest -k selects"
    )
    measure = steps.add_parser("measure", parents=[parents, model], help="measure decoding")
    measure.add_argument("--only", default="", help="of the tasks those whose name contains this")
    train = steps.add_parser("train", parents=[parents, model], help="train an EAGLE-3 head")
    train.add_argument("--data", nargs="+", default=(), help="files of `pack`")
    train.add_argument(
        "--minutes", type=float, help="of training in all; left out, 70 % of --seconds"
    )
    train.add_argument("--set", nargs="*", default=(), metavar="NAME=VALUE", help="other settings")

    pack = steps.add_parser("pack", help="pack the files of `forerun train data`")
    pack.add_argument("data", nargs="+", help="of `forerun train data`")
    pack.add_argument("file", help="to write, .npz")
    pack.add_argument("--part-bytes", type=int, default=PART_BYTES, help="of a file at most")
    join = steps.add_parser("join", help="join the parts of a file and check it")
    join.add_argument("parts", nargs="+", help="in their order, or the beginning of their names")
    join.add_argument("file", help="to write")
    join.add_argument("--sha256", default=SMOLLM2_SHA256)
    return parser


if __name__ == "__main__":
    sys.exit(main())
