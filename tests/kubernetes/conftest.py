from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.cluster import Cluster
from tests.support.node import Node


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ApiServer() as server:
        server.add_node("n1")
        kubeconfig = server.kubeconfig(tmp_path / "kubelet.conf", node="n1")
        yield Cluster(Node("hgx-h200-8", tmp_path / "root"), server, kubeconfig)
