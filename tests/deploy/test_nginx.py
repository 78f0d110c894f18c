"""nginx with deploy/nginx.conf before a server."""

import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from addnorm.service.settings import Settings
from benchmarks.processes import free_port
from tests.support import web
from tests.support.waiting import eventually

CONFIGURATION = (Path(__file__).parents[2] / "deploy" / "nginx.conf").read_text()
PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
HEAD = """daemon off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 64; }}
http {{ access_log off; client_body_temp_path {folder}/bodies; proxy_temp_path {folder}/answers;
{own} }}"""


def seconds(name: str) -> float:
    (value,) = re.findall(rf"^ +{name} (\d+)s;", CONFIGURATION, re.MULTILINE)
    return float(value)


def test_nginxs_times_fit_those_of_the_server() -> None:
    assert seconds("proxy_read_timeout") > Settings().bulk_timeout_s
    assert seconds("keepalive_timeout") < Settings().keep_alive_s


@pytest.fixture
def address(text_url: str, tmp_path: Path) -> Iterator[str]:
    """nginx with HTTPS before the server."""
    if PROGRAM is None:
        pytest.skip("nginx is not installed")
    key, port = tmp_path / "key.pem", free_port()
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*command.split(), "-keyout", key, "-out", key], check=True, capture_output=True)
    configuration = CONFIGURATION.replace("listen 443", f"listen 127.0.0.1:{port}")
    configuration = configuration.replace("127.0.0.1:8000", text_url.removeprefix("http://"))
    configuration = re.sub(r"(ssl_certificate\w*) +\S+;", rf"\1 {key};", configuration)
    (tmp_path / "nginx.conf").write_text(HEAD.format(folder=tmp_path, own=configuration))
    process = subprocess.Popen([PROGRAM, "-c", tmp_path / "nginx.conf", "-e", tmp_path / "errors"])
    try:
        yield f"https://localhost:{port}"
    finally:
        process.terminate()
        process.wait()


def test_callers_routes_are_let_through_and_operators_are_not(address: str) -> None:
    trusts_all = ssl.create_default_context()
    trusts_all.check_hostname, trusts_all.verify_mode = False, ssl.CERT_NONE
    with web.client(base_url=address, verify=trusts_all) as client:

        def answered() -> bool:
            try:
                return client.get("/readyz").status_code == 200
            except httpx.ConnectError:
                return False

        assert eventually(answered)
        body = {"model": "all-minilm-l6-v2", "input": "Pads are dropped."}
        assert client.post("/v1/embeddings", json=body).status_code == 200
        assert client.get("/metrics").status_code == 403
        assert client.post("/v2/repository/index").status_code == 403
        large = client.post("/v1/embeddings", content=b"a" * 20_000_000)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
