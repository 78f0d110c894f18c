"""A Ray cluster of three raylets on this machine, and the application deployed to it."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "ray-serve.yaml"
PORT = 8123
DASHBOARD = "http://127.0.0.1:8277"
NUM_NODES = 3
NODE: Mapping[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
START_S = 90.0
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # else the proxy sends everything to its own node's replica, up to max_ongoing_requests
    "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",
}


class Nodes:
    """The first node has the controller, the proxy and a replica; each other has a replica."""

    def __init__(self, cluster: Any, workers: list[Any]) -> None:
        self._cluster, self._workers = cluster, workers

    def kill_raylet(self) -> None:
        """SIGKILL to the last node's raylet. Its workers end because it has ended."""
        self._workers.pop().kill_raylet()

    def deploy(self, bundles: Path, num_replicas: int) -> None:
        """`serve deploy` of the example configuration with this folder. Returns once so many
        replicas of it run, and no others are left."""
        former = {replica["replica_id"] for replica in self.replicas()}
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(_configuration(bundles, num_replicas), file)
            file.flush()
            command = [str(Path(sys.executable).with_name("serve")), "deploy", file.name]
            environment = {**os.environ, "RAY_DASHBOARD_ADDRESS": DASHBOARD}
            subprocess.run(command, check=True, env=environment, capture_output=True)
        ends = time.monotonic() + START_S
        while not self._are_new(num_replicas, former):
            if time.monotonic() > ends:
                raise RuntimeError(f"{num_replicas} replicas did not start within {START_S:g} s")
            time.sleep(0.2)

    def _are_new(self, num_replicas: int, former: set[str]) -> bool:
        replicas = self.replicas()
        states = [replica["state"] for replica in replicas]
        ids = {replica["replica_id"] for replica in replicas}
        return states == ["RUNNING"] * num_replicas and not former & ids

    def replicas(self) -> list[dict[str, Any]]:
        """The application's replicas, as Serve's REST API describes them: `state`, `pid`,
        `replica_id`."""
        with urllib.request.urlopen(f"{DASHBOARD}/api/serve/applications/", timeout=30) as answer:
            applications = json.load(answer)["applications"]
        deployments = applications.get("addnorm", {"deployments": {}})["deployments"]
        return list(deployments.get("Addnorm", {"replicas": []})["replicas"])

    def running(self) -> list[dict[str, Any]]:
        return [replica for replica in self.replicas() if replica["state"] == "RUNNING"]


def _configuration(bundles: Path, num_replicas: int) -> dict[str, Any]:
    """The example for machines as small as these nodes."""
    settings: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    settings["proxy_location"] = "HeadOnly"  # all nodes have one address here
    settings["http_options"] |= {"host": "127.0.0.1", "port": PORT}
    (application,) = settings["applications"]
    # what is asked again is computed again
    application["args"] = {
        "bundles": str(bundles.resolve()),
        "settings": {"cache_bytes": 0, "token_budget": 256, "log_level": "warning"},
    }
    (deployment,) = application["deployments"]
    del deployment["autoscaling_config"]
    deployment |= {"ray_actor_options": {"num_cpus": 1}, "num_replicas": num_replicas}
    return settings


@contextmanager
def three_nodes() -> Iterator[Nodes]:
    """Each node is a raylet with its workers, a process of its own."""
    os.environ |= ENVIRONMENT
    dashboard = {"include_dashboard": True, "dashboard_port": int(DASHBOARD.rpartition(":")[2])}
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, **dashboard})
    try:
        workers = [cluster.add_node(**NODE) for _ in range(NUM_NODES - 1)]
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield Nodes(cluster, workers)
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()
