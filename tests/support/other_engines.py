"""Engines that give other bits than the exporting machine's."""

import numpy as np

from addnorm.service.engine.batch import Floats
from addnorm.service.engine.engine import Engine


def round_up(row: Floats) -> None:
    row[0] = np.nextafter(row[0], np.float32(9))


class OnGpu(Engine):
    """Says as a GPU does that its bits are no machine's else."""

    exact = False
