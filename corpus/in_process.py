"""A bundle served in this process, without a socket, by all the code of `addnorm serve`."""

from pathlib import Path
from typing import Any

from addnorm.corpus.errors import CorpusError
from addnorm.service.errors import StartupError
from addnorm.service.loading.loader import load
from addnorm.service.models.registry import Models
from addnorm.service.runtime import bundle as bundles
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings

RUN_S = 3600.0  # one of the longest sequences, on a slow machine


def open_service(bundle: Path, **changed: Any) -> Service:
    """To be closed. CorpusError if the bundle is refused.

    changed: settings that are not the default ones. The environment is not read. No run counts as
    hanging: nobody waits for an answer within seconds.
    """
    settings = Settings(invariance_check_share=0, **{"run_timeout_s": RUN_S, **changed})
    try:
        return build(Models([load(bundles.read(bundle), settings)]), settings)
    except StartupError as error:
        raise CorpusError(str(error)) from None
