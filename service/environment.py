"""Reads the settings of this process, once: from options and from variables with the prefix
ADDNORM_. Says where each comes from."""

import logging
import os
import socket
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from addnorm.service.errors import StartupError
from addnorm.service.settings import Settings, descriptions

PREFIX = "ADDNORM_"
KEYS = f"{PREFIX}API_KEYS"
# without these a server trusts more, so the log says where they are empty
GUARDS = (f"{PREFIX}API_KEYS_FILE", f"{PREFIX}TRUSTED_KEYS")
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's
# What platforms say to the containers that they start, the first that is set: Vertex AI; Cloud Run,
# Heroku and others. ADDNORM_PORT wins.
PORTS = ("AIP_HTTP_PORT", "PORT")
# method and path that is meant by the path in the variable
VERTEX_ROUTES = {"AIP_PREDICT_ROUTE": ("POST", "/vertex"), "AIP_HEALTH_ROUTE": ("GET", "/health")}
# how the variables go on that Kubernetes injects for a service called addnorm
OF_KUBERNETES = ("port_", "service_")
FIRST_OF_SYSTEMD = 3  # SD_LISTEN_FDS_START
LIST = "`addnorm settings` lists them all"
log = logging.getLogger("addnorm")


def read_settings(**options: Any) -> Settings:
    """Settings of this process: options win over the environment, the environment over defaults.

    options: from the command line. StartupError names the variable or option that does not fit. An
    empty value counts as not set, because compose files and charts write omitted variables so. API
    keys are the exception: without them a server would be open to all.
    """
    options = {name: value for name, value in options.items() if not is_blank(value)}
    platform = next((name for name in PORTS if not is_blank(os.environ.get(name, ""))), "")
    values = {"port": os.environ[platform]} if platform else {}
    for variable in sorted(name for name in os.environ if name.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX).lower()
        if name in Settings.model_fields:
            if variable == KEYS or not is_blank(os.environ[variable]):
                values[name] = os.environ[variable]
            elif variable in GUARDS:
                log.warning("%s is empty, so it is treated as not set", variable)
        elif not name.startswith(OF_KUBERNETES):
            close = get_close_matches(name, Settings.model_fields, 1)
            hint = f"did you mean {PREFIX}{close[0].upper()}?" if close else LIST
            log.warning("%s is not a setting: %s", variable, hint)
    try:
        return Settings.model_validate(values | options)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        source = f"{PREFIX}{name.upper()}"
        if name in options:
            source = f"--{name.replace('_', '-')}"
        elif name == "port" and is_blank(os.environ.get(source, "")):
            source = platform
        message = f"{source}={first['input']}: {first['msg']}; correct or unset it"
        raise StartupError(message) from None


def is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def vertex_routes() -> dict[tuple[str, str], str]:
    """Method and path of Vertex AI's requests -> this server's path. StartupError if a variable has
    no path."""
    routes = {}
    for variable, (method, target) in VERTEX_ROUTES.items():
        if path := os.environ.get(variable):
            if not path.startswith("/"):
                raise StartupError(
                    f"{variable}={path}: a path must begin with /; correct or unset it"
                )
            routes[method, path] = target
    return routes


def check_metrics_folder() -> None:
    """StartupError where prometheus_client would find no folder for its files."""
    folder = os.environ.get(METRICS_FOLDER)
    if folder and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        raise StartupError(
            f"{METRICS_FOLDER}={folder}: this user cannot write to the folder, or it does not"
            " exist; create it, or unset the variable"
        )


def systemd_sockets() -> list[socket.socket]:
    """The sockets that systemd has opened for this process: sd_listen_fds(3). StartupError for one
    that does not listen."""
    sockets = list[socket.socket]()
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        for number in range(int(os.environ["LISTEN_FDS"])):
            sockets.append(sock := socket.socket(fileno=FIRST_OF_SYSTEMD + number))
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise StartupError(
                    "systemd's socket does not listen: give its unit ListenStream= and Accept=no"
                )
    return sockets


def describe(settings: Settings, options: Collection[str] = ()) -> str:
    """One block per setting: its variable, its value in force, where that comes from, its meaning.

    options: names of those that the command line set.
    """
    lines = []
    for name, meaning in descriptions().items():
        source = "default"
        if name in settings.model_fields_set:
            origin = "command line" if name in options else "environment"
            source = f"{origin}; default {Settings.model_fields[name].default}"
        lines.append(f"{PREFIX}{name.upper()}={getattr(settings, name)}  ({source})")
        lines.append(f"    {meaning}")
    return "\n".join(lines)
