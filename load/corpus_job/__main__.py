"""`python -m addnorm.load.corpus_job`: proofs of `addnorm embed`, and its speed.

kills: a job of 200,000 texts, killed twice with SIGKILL, beside one that is not.
speed: tokens per second beside the engine alone.
peers: beside sentence-transformers, and beside Ray Data with it and with Addnorm.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.corpus.texts_source import Source
from addnorm.load.corpus_job import kills, speed, texts
from addnorm.load.machine import machine


def main() -> None:
    arguments = _parser().parse_args()
    print(machine())
    with TemporaryDirectory(prefix="addnorm-corpus-") as folder:
        PROOFS[arguments.proof](arguments, Path(folder))


def _kills(arguments: argparse.Namespace, folder: Path) -> None:
    source = texts.write(folder / "texts.parquet", arguments.rows, arguments.bundle, "tiny")
    command = [str(source), "{}", "--bundle", str(arguments.bundle), "--truncate"]
    outs = [folder / "unkilled.parquet", folder / "killed.parquet"]
    whole = kills.run([part.format(outs[0]) for part in command], outs[0])
    runs = [
        kills.run([part.format(outs[1]) for part in command], outs[1], after)
        for after in (*kills.KILLED_AFTER, None)
    ]
    tenths = [whole.resident_mib[len(whole.resident_mib) * tenth // 10] for tenth in range(1, 10)]
    print(f"resident MiB at each tenth of {whole.seconds:.0f} s: {[round(one) for one in tenths]}")
    print(f"parts after each kill: {[one.num_parts for one in runs[:-1]]}")
    if not kills.equal(*outs):
        sys.exit("the killed job's result differs")
    print(f"{arguments.rows:,} rows: the killed job's file has the same bytes")


def _speed(arguments: argparse.Namespace, folder: Path) -> None:
    source = Source(
        texts.write(folder / "texts.parquet", arguments.rows, arguments.bundle), ["text"]
    )
    rates = speed.measured(source, arguments.bundle, arguments.precision, folder, arguments.rounds)
    for name, each in rates._asdict().items():
        print(f"{name}: {', '.join(f'{rate:,.0f}' for rate in each)} tokens/s")
    print(f"job / engine alone: {rates.ratio:.3f}, at least {speed.MIN_RATIO} is wanted")


def _peers(arguments: argparse.Namespace, folder: Path) -> None:
    """In one run, one after the other, each in a process of its own."""
    source = texts.write(folder / "texts.parquet", arguments.rows, arguments.bundle)
    program = [arguments.peer_python, str(Path(__file__).with_name("peers.py")), str(source)]
    for name, model in (
        ("addnorm-fp32", arguments.bundle),
        ("encode", arguments.checkpoint),
        ("addnorm-int8", arguments.bundle),
        ("ray-encode", arguments.checkpoint),
        ("ray-addnorm", arguments.bundle),
    ):
        subprocess.run([*program, name, str(model)], check=True)


PROOFS = {"kills": _kills, "speed": _speed, "peers": _peers}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.corpus_job")
    parser.add_argument("proof", choices=PROOFS)
    parser.add_argument("--bundle", type=Path, required=True, help="with a tokenizer")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--precision", choices=["fp32", "int8"], default="fp32")
    parser.add_argument("--rounds", type=int, default=4, help="of speed")
    parser.add_argument("--checkpoint", type=Path, help="of the bundle, for the peers")
    parser.add_argument(
        "--peer-python", help="of an environment with addnorm[corpus,ray], sentence-transformers"
    )
    return parser


if __name__ == "__main__":
    main()
