"""`python -m addnorm.load.dashboard --bundle BUNDLE --texts BUNDLE`: draws the Grafana dashboard.

Starts a server under load and Prometheus (Debian's package `prometheus`) with the rules and the
scrape interval of deploy/, runs every query of every panel, and draws the answers in the
dashboard's grid. Fails if a query has no data, or if a unit is not known.
"""

import argparse
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from tqdm import tqdm

from addnorm.load import servers
from addnorm.load.dashboard.drawing import Answer, draw
from addnorm.load.dashboard.panels import Dashboard, Panel, Prometheus, Series, rate_interval, read
from addnorm.load.dashboard.traffic import Traffic
from addnorm.load.servers import LOOPBACK, Server
from addnorm.service.runtime import bundle as bundles
from addnorm.service.settings import Settings

DEPLOY = Path("deploy")
DASHBOARD = DEPLOY / "grafana/provisioning/dashboards/addnorm.json"
DEFAULT_CACHE_BYTES = str(Settings.model_fields["cache_bytes"].default)
START_S = 30.0


def main() -> None:
    arguments = _parser().parse_args()
    servers.end_on_sigterm()
    if not shutil.which("prometheus"):
        sys.exit("prometheus is not installed: `apt-get install prometheus`")
    bundle, with_texts = bundles.read(arguments.bundle), bundles.read(arguments.texts)
    traffic = Traffic(bundle, with_texts, arguments.seconds)
    serving = servers.serving([bundle, with_texts], ADDNORM_CACHE_BYTES=DEFAULT_CACHE_BYTES)
    with serving as server, prometheus(server) as url:
        start = time.time()
        print(f"sending requests for {arguments.seconds:.0f} s", file=sys.stderr)
        traffic.send(server)
        answers = _asked(read(DASHBOARD), Prometheus(url, start, time.time()))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    draw(arguments.out, answers)
    num_queries = sum(len(answer.panel.targets) for answer in answers)
    empty = [f"{answer.panel.title}: {name}" for answer in answers for name in answer.without]
    print(f"{num_queries} queries drawn in {arguments.out}; without data: {empty or 'none'}")
    if empty:
        sys.exit(1)


def _asked(dashboard: Dashboard, source: Prometheus) -> list[Answer]:
    """SystemExit if a variable has nothing to choose from."""
    for name, query in dashboard.choices.items():
        if not source.label_values(query):
            sys.exit(f"variable {name}: {query} has no values")
    scrape_s = float(_configuration()["global"]["scrape_interval"].removesuffix("s"))
    interval = rate_interval(scrape_s)
    panels = tqdm(dashboard.panels, "panels", leave=False, disable=None)
    return [_answer(dashboard, panel, source, interval) for panel in panels]


def _answer(dashboard: Dashboard, panel: Panel, source: Prometheus, interval: str) -> Answer:
    series: Series = {}
    rows, without = list[dict[str, str]](), list[str]()
    for target in panel.targets:
        query, form = dashboard.query(target["expr"], interval), target["legendFormat"]
        own_rows = source.labels(query) if panel.kind == "table" else []
        own_series = source.series(query, form) if panel.kind != "table" else {}
        rows, series = rows + own_rows, series | own_series
        if not own_rows and not own_series:
            without.append(form or target["refId"])
    return Answer(panel, series, rows, without)


def _configuration() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    return found


@contextmanager
def prometheus(server: Server) -> Iterator[str]:
    """It scrapes this server alone, and ends with the block. -> its URL"""
    configuration = _configuration()
    configuration["rule_files"] = [str((DEPLOY / "rules.yml").resolve())]
    target = {"targets": [f"{server.host}:{server.port}"]}
    configuration["scrape_configs"] = [{"job_name": "addnorm", "static_configs": [target]}]
    address = f"{LOOPBACK}:{servers.free_port()}"
    with TemporaryDirectory() as folder:
        file = Path(folder, "prometheus.yml")
        file.write_text(yaml.safe_dump(configuration))
        options = {"config.file": file, "storage.tsdb.path": folder, "log.level": "warn"}
        words = [f"--{name}={value}" for name, value in options.items()]
        process = subprocess.Popen(["prometheus", *words, f"--web.listen-address={address}"])
        try:
            _await(f"http://{address}/-/ready", process)
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(10)


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"prometheus did not answer within {START_S:.0f} s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.dashboard", description=__doc__)
    add = parser.add_argument
    add("--bundle", type=Path, required=True, help="gets token ids: <bundles>/<name>/<version>")
    add("--texts", type=Path, required=True, help="another one, with a tokenizer: gets texts")
    add("--seconds", type=float, default=120.0, help="of load (120)")
    add("--out", type=Path, default=Path("docs/dashboard.png"))
    return parser


if __name__ == "__main__":
    main()
