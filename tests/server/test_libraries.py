"""docs/design/libraries.md has every option of the installed libraries, and what we set."""

import inspect
import re
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import httptools
import onnxruntime
import pytest
import uvicorn

from addnorm.service.engine.registry import Models
from addnorm.service.engine.session import _options
from addnorm.service.server.process import configure
from addnorm.service.settings import Settings
from tests.conftest import service_of

PAGE = Path(__file__).parents[2] / "docs" / "design" / "libraries.md"
# of a channel: the others are a client's, or grpcio's own
OF_SERVERS = (
    rb"grpc\.(?:http2?|server|secure_endpoint|tsi|experimental\.tcp|experimental\.http2"
    rb"|experimental\.server)[._][a-z0-9_.]+"
    rb"|grpc\.(?:keepalive|max_connection|max_metadata|max_allowed|max_concurrent|max_receive"
    rb"|max_send|absolute_max|per_message|default_compression|compression|so_|tcp_)[a-z0-9_.]*"
)
# metrics and names of others that look like options
NO_OPTIONS = (
    "grpc.http2_scheme grpc.server_uri grpc.server.tls.handshakes grpc.http."
    "do_not_use_unless_you_have_permission_from_grpc_team_allow_broken_put_requests"
    " grpc.max_connections_per_subchannel_cap grpc.http_proxy grpc.http_connect_headers"
    " grpc.http_connect_server"
)


def rows(title: str) -> dict[str, tuple[str, str]]:
    """option -> default and ours, of all tables below the heading."""
    (section,) = re.findall(
        rf"^## {re.escape(title)}\n(.+?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S
    )
    lines = re.findall(r"^\| (`.+?`) \| (.+?) \| (.+?) \|", section, re.M)
    return {
        option: (default.strip("`"), ours)
        for options, default, ours in lines
        for option in re.findall(r"`(.+?)`", options)
    }


def written(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if default is uvicorn.config.LOGGING_CONFIG:
        return "LOGGING_CONFIG"
    # onnxruntime's enumerations are none of Python's
    is_enum = isinstance(default, Enum) or hasattr(default, "__members__")
    return str(default.name) if is_enum else repr(default)


def changed(tabled: dict[str, tuple[str, str]]) -> set[str]:
    return {option for option, (_, ours) in tabled.items() if ours != "-"}


@cache
def names_in(package: str, library: str, pattern: bytes) -> set[str]:
    """The strings of a compiled library that are whole names of this pattern."""
    spec = inspect.getfile(__import__(package))
    (file,) = Path(spec).parent.glob(library)
    names = re.findall(rb"(?<!cy)(?:%b)(?=\0)" % pattern, file.read_bytes())
    return {name.decode() for name in names if not name.endswith((b".h", b".cc"))}


def test_options_of_uvicorn(few: Models) -> None:
    tabled = rows("uvicorn: `Config`")
    parameters = inspect.signature(uvicorn.Config).parameters
    assert {name: written(each.default) for name, each in parameters.items()} == {
        name: default for name, (default, _) in tabled.items()
    }
    service = service_of(few, host="::1", keep_alive_s=60)
    config = configure(service)
    service.close()
    differing = {
        name
        for name, each in parameters.items()
        if hasattr(config, name) and getattr(config, name) not in (each.default, each.default or [])
    }
    derived = {"workers", "forwarded_allow_ips"}  # that uvicorn itself fills in
    assert differing - derived == changed(tabled) - {"ssl_context_factory"}  # without TLS


def test_options_of_httptools() -> None:
    tabled = rows("httptools: `HttpRequestParser`")
    parameters = inspect.signature(httptools.HttpRequestParser.set_dangerous_leniencies).parameters
    assert {name: written(each.default) for name, each in parameters.items() if name != "self"} == {
        name: default for name, (default, _) in tabled.items()
    }


def test_options_of_onnxruntime() -> None:
    tabled = rows("onnxruntime: `SessionOptions`")
    default, ours = onnxruntime.SessionOptions(), _options(1, fits_16_bits=False)
    names = [name for name in dir(default) if not name.startswith("_")]
    options = [name for name in names if not callable(getattr(default, name))]
    assert {name: written(getattr(default, name)) for name in options} == {
        name: default for name, (default, _) in tabled.items() if "." not in name
    }
    differing = {name for name in options if getattr(default, name) != getattr(ours, name)}
    assert differing == {name for name in changed(tabled) if "." not in name}


def test_configuration_entries_of_onnxruntime() -> None:
    tabled = rows("onnxruntime: `SessionOptions`")
    library = "capi/onnxruntime_pybind11_state*.so"
    names = names_in("onnxruntime", library, rb"session\.[a-z0-9_.]+")
    assert {name for name in names if not name.startswith("session.moe.")} <= {*tabled}
    entries = {name for name in changed(tabled) if name.startswith("session.")}
    assert entries <= names
    assert names_in("onnxruntime", library, rb"ORT_(?:DISABLE_TELEMETRY|LOAD_CONFIG_FROM_MODEL)")


def test_options_of_grpcio() -> None:
    pytest.importorskip("grpc")
    from addnorm.service.server.grpc.grpc_listener import channel_arguments

    tabled = rows("grpcio: the server's channel arguments")
    names = names_in("grpc", "_cython/cygrpc*.so", OF_SERVERS)
    assert names - {*NO_OPTIONS.split()} <= {*tabled}
    ours = dict(channel_arguments(Settings()))
    assert {*ours} == changed(tabled)
    assert {*ours} <= names  # grpcio says nothing of an option that it does not know
