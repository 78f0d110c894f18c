"""Reads the settings of this process, once: from options and from variables with the prefix
ADDNORM_. Says where each comes from."""

import logging
import os
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from addnorm.service.errors import StartupError
from addnorm.service.settings import Settings

PREFIX = "ADDNORM_"
# what Vertex AI says to the containers that it starts
OF_VERTEX = {
    "AIP_HTTP_PORT": "port",
    "AIP_PREDICT_ROUTE": "vertex_predict_route",
    "AIP_HEALTH_ROUTE": "vertex_health_route",
}
# how the variables go on that Kubernetes injects for a service called addnorm
OF_KUBERNETES = ("port_", "service_")
log = logging.getLogger("addnorm")


def read_settings(**options: Any) -> Settings:
    """Settings of this process: options win over the environment, the environment over defaults.

    options: from the command line. StartupError names the variable or option that does not fit.
    """
    try:
        return Settings.model_validate(_environment() | options)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        where = f"--{name.replace('_', '-')}" if name in options else _variable(name)
        message = f"{where}={first['input']}: {first['msg']}; correct or unset it"
        raise StartupError(message) from None


def _environment() -> dict[str, str]:
    """The settings among the variables, Vertex AI's where there is none of our own. A variable that
    only looks like one gets a warning."""
    found = {name: os.environ[its] for its, name in OF_VERTEX.items() if its in os.environ}
    for variable in sorted(name for name in os.environ if name.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX).lower()
        if name in Settings.model_fields:
            found[name] = os.environ[variable]
        elif not name.startswith(OF_KUBERNETES):
            log.warning("%s is no setting: %s", variable, _hint(name))
    return found


def _variable(name: str) -> str:
    """That sets it, or would."""
    own = f"{PREFIX}{name.upper()}"
    its = next((its for its, theirs in OF_VERTEX.items() if theirs == name), own)
    return its if its in os.environ and own not in os.environ else own


def _hint(name: str) -> str:
    """What may have been meant."""
    close = get_close_matches(name, Settings.model_fields, 1)
    return (
        f"did you mean {PREFIX}{close[0].upper()}?"
        if close
        else "`addnorm settings` lists them all"
    )


def describe(settings: Settings, options: Collection[str] = ()) -> str:
    """One block per setting: its variable, its value in force, where that comes from, its meaning.

    options: names of those that the command line set.
    """
    lines = []
    for name, field in Settings.model_fields.items():
        source = "default"
        if name in settings.model_fields_set:
            where = "command line" if name in options else "environment"
            source = f"{where}; default {field.default}"
        lines.append(f"{PREFIX}{name.upper()}={getattr(settings, name)}  ({source})")
        lines.append(f"    {field.description}")
    return "\n".join(lines)
