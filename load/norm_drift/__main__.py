"""`python -m addnorm.load.norm_drift`: do LayerNorm statistics notice a change of traffic first?

Method. A real model computes English texts of 20 to 60 words, and texts of many changes: typos and
other faults, other subjects, code, other languages. Traffic is looked at in windows of 32, 128 or
512 texts, of which a share of 5 to 100 % is changed. Each detector makes one figure of a window,
and raises an alarm where it is above its threshold. Detectors of LayerNorm statistics (PSI of
their histograms, and distances of their means) are compared with those of the texts' vectors
(cosine to the reference, and distances) and of the token ids, which need no model.

All thresholds are such that 1 % of windows without a change raise an alarm. They are of windows of
held-out texts, other than the reference's and than the windows that are tested (`trial.py`). So the
detectors differ only in their power: the share of the changed windows that they notice. A detector
notices a change from the least share of changed texts at which it has a power of 90 %, there and at
larger shares. LayerNorm statistics win where they notice a change at a smaller share than all
others. The seed is fixed. What was computed of the texts is kept in `--rows`.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from addnorm.load.machine import machine
from addnorm.load.norm_drift import report, texts, trial
from addnorm.load.norm_drift.rows import Measured, Model

SEED = 0
# a third of the shorter reference has too few texts for larger windows
REFERENCES = {"book": (texts.of_book, (32, 128, 512)), "prose": (texts.of_prose, (32,))}


def main() -> None:
    arguments = _parser().parse_args()
    print(machine())
    traffic_of, windows = REFERENCES[arguments.reference]
    traffic = traffic_of(arguments.packages, arguments.prose, np.random.default_rng(SEED))
    folder = arguments.rows / arguments.reference
    reference, changed = _measured(traffic, arguments.bundle, folder)
    print(f"{len(reference):,} texts, {len(reference.tokens):,} tokens of the reference")
    draws = np.random.default_rng(SEED)
    power = trial.run(reference, changed, windows, arguments.splits, draws)
    found = [{**case._asdict(), "power": by_detector} for case, by_detector in power.items()]
    (folder / "power.json").write_text(json.dumps(found, indent=1))
    for window in windows:
        print(report.table(power, window))
    if arguments.picture:
        report.picture(arguments.picture, power)


def _measured(
    traffic: texts.Traffic, bundle: Path, folder: Path
) -> tuple[Measured, dict[str, Measured]]:
    model = Model(bundle)
    try:
        measured = {
            name: _kept(folder / f"{name}-{_digest(own)}.npz", partial(model.measured, own))
            for name, own in {"reference": traffic.reference, **traffic.changed}.items()
        }
        like, draws = measured["none"], np.random.default_rng(SEED)
        path = folder / f"random-{_digest(traffic.changed['none'])}.npz"
        measured["random tokens"] = _kept(path, partial(model.of_random_tokens, like, draws))
    finally:
        model.close()
    return measured.pop("reference"), measured


def _digest(own: Sequence[str]) -> str:
    return sha256("\n".join(own).encode()).hexdigest()[:12]


def _kept(path: Path, make: Callable[[], Measured]) -> Measured:
    """What a run before has measured is read."""
    if not path.exists():
        make().save(path)
    return Measured.load(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.norm_drift")
    parser.add_argument("reference", choices=REFERENCES)
    parser.add_argument("--bundle", type=Path, required=True, help="that takes texts")
    parser.add_argument(
        "--packages", type=Path, required=True, help="debian-handbook and fortunes, unpacked there"
    )
    parser.add_argument("--prose", type=Path, nargs="+", required=True, help="files of English")
    parser.add_argument("--rows", type=Path, required=True, help="where to keep what is computed")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--picture", type=Path, help="where to write it")
    return parser


if __name__ == "__main__":
    main()
