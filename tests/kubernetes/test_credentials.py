"""Which credentials of the host are taken, and whose they are, on a host's files on disk."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from gpu_bootstate.kubernetes.credentials import Kubelet, NoCredentials, find
from gpu_bootstate.yaml_marks import MAX_SIZE
from tests.kubernetes.api_server import ApiServer

KUBEADM = "/etc/kubernetes/kubelet.conf"
NLLB = "/run/k0s/nllb/kubeconfig.yaml"
KNOWN = {
    KUBEADM: "kubeadm",
    "/var/lib/rancher/k3s/agent/kubelet.kubeconfig": "k3s",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig": "RKE2",
    "/var/lib/kubelet/kubeconfig": "OpenShift, EKS",
    "/var/snap/microk8s/current/credentials/kubelet.config": "MicroK8s",
    NLLB: "k0s with node-local load balancing",
    "/var/lib/k0s/kubelet.conf": "k0s",
    "/etc/kubernetes/kubeconfig-kubelet": "Talos",
    "/etc/kubernetes/kubelet-kubeconfig": "others",
}
CURRENT = "/var/lib/kubelet/pki/kubelet-client-current.pem"
REMEDY = "set `kubernetes: kubeconfig:` in the configuration."
CA = trustme.CA()
only_root_gives_away = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


class Tree:
    """A host's files under a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def write(self, name: str, content: str | bytes = b"") -> Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(0o600)
        return path

    def link(self, name: str, target: str) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).symlink_to(target)

    def kubeconfig(self, name: str, **user: str) -> Path:
        """Without arguments: a token, which says nothing about the node."""
        return self.write(name, yaml.safe_dump(config(user or {"token": "t"})))

    def process(self, pid: int, *words: str, nspid: str = "") -> Path:
        self.write(f"/proc/{pid}/cmdline", "".join(f"{word}\0" for word in words))
        self.write(
            f"/proc/{pid}/status", f"Name:\tx\nPid:\t{pid}\nNSpid:\t{pid}{nspid}\nNSsid:\t1\n"
        )
        return self.path(f"/proc/{pid}")

    def find(self, **given: str) -> tuple[str, str | None, str]:
        """Path on the host, name of the Node, found by."""
        kubelet: Kubelet = find(self.root, **given)
        return (
            f"/{kubelet.kubeconfig.relative_to(self.root)}",
            kubelet.node_name,
            kubelet.found_by,
        )

    def refusal(self, **given: str) -> str:
        with pytest.raises(NoCredentials) as caught:
            find(self.root, **given)
        return str(caught.value)


@pytest.fixture
def host(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def config(user: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443"}}],
        "contexts": [
            {"name": "other", "context": {"cluster": "c", "user": "admin"}},
            {"name": "in-use", "context": {"cluster": "c", "user": "node"}},
        ],
        "users": [
            {"name": "admin", "user": {"client-certificate": "/there/is/none.pem"}},
            {"name": "node", "user": user},
        ],
        "current-context": "in-use",
    }


def pem(common_name: str) -> bytes:
    issued = CA.issue_cert(common_name=common_name, organization_name="system:nodes")
    return issued.cert_chain_pems[0].bytes()


def key() -> bytes:
    return CA.issue_cert("key.example").private_key_pem.bytes()


def embedded(certificate: bytes) -> dict[str, str]:
    return {"client-certificate-data": base64.b64encode(certificate).decode()}


# --------------------------------------------------------------------------- where


@pytest.mark.parametrize(("place", "name"), KNOWN.items())
def test_the_kubeconfig_of_each_distribution_is_found(host: Tree, place: str, name: str) -> None:
    host.kubeconfig("/etc/kubernetes/kubeconfig")  # OpenShift's for joining: never used
    host.kubeconfig(place)
    assert host.find() == (place, None, f"a known place ({name})")


def test_the_balanced_file_of_k0s_goes_before_the_stale_one(host: Tree) -> None:
    host.kubeconfig("/var/lib/k0s/kubelet.conf")
    host.kubeconfig(NLLB)
    assert host.find()[0] == NLLB


def test_the_root_is_made_absolute(host: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    host.kubeconfig(KUBEADM)
    monkeypatch.chdir(host.root.parent)
    assert find(Path(host.root.name)).kubeconfig == host.path(KUBEADM)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param(["/usr/bin/kubelet", "--kubeconfig", "/k"], True, id="kubelet"),
        pytest.param(["kubelet", "-v=2", "--kubeconfig=/k", "--x"], True, id="one-word"),
        pytest.param(["kubelet", "--kubeconfig=/old", "--kubeconfig=/k"], True, id="last-holds"),
        pytest.param(
            ["kubelet", "--kubeconfig", "/old", "--kubeconfig", "/k"],
            True,
            id="last-of-words-holds",
        ),
        pytest.param(["/snap/microk8s/1/kubelite", "--kubeconfig=/k"], True, id="kubelite"),
        pytest.param(["/usr/local/bin/k3s", "server", "--kubeconfig=/k"], True, id="k3s-server"),
        pytest.param(["k3s", "agent", "--kubeconfig=/k"], True, id="k3s-agent"),
        pytest.param(["rke2", "server", "--kubeconfig", "/k"], True, id="rke2"),
        pytest.param(["k0s", "worker", "--kubeconfig", "/k"], True, id="k0s"),
        pytest.param(["k0s", "controller", "--kubeconfig", "/k"], True, id="k0s-controller"),
        pytest.param(["k3s", "kubectl", "--kubeconfig=/k"], False, id="kubectl-of-k3s"),
        pytest.param(["k3s", "--kubeconfig=/k"], False, id="k3s-alone"),
        pytest.param(["kubectl", "--kubeconfig=/k"], False, id="kubectl"),
        pytest.param(["vi", "kubelet", "--kubeconfig=/k"], False, id="not-the-program"),
        pytest.param(["kubelet-top", "--kubeconfig=/k"], False, id="longer-name"),
        pytest.param(["kubelet", "--bootstrap-kubeconfig=/k"], False, id="bootstrap"),
        pytest.param(["kubelet", "--kubeconfig=k"], False, id="relative"),
        pytest.param(["kubelet", "--kubeconfig="], False, id="empty"),
        pytest.param(["kubelet", "--kubeconfig"], False, id="cut-off"),
        pytest.param(["kubelet"], False, id="no-argument"),
        pytest.param(["k3s server"], False, id="title-rewritten"),
        pytest.param([], False, id="kernel-thread"),
    ],
)
def test_a_running_kubelet_says_where_its_kubeconfig_is(
    host: Tree, words: list[str], *, found: bool
) -> None:
    host.kubeconfig(KUBEADM)
    host.kubeconfig("/k")
    host.kubeconfig("/old")
    host.kubeconfig("k")
    host.process(1, "/sbin/init")
    host.process(812, *words)
    host.write("/proc/meminfo", "kubelet")
    assert host.find() == (
        ("/k", None, "the running kubelet (pid 812)")
        if found
        else (KUBEADM, None, "a known place (kubeadm)")
    )


def test_of_two_kubelets_the_first_that_names_a_kubeconfig_counts_and_its_name(host: Tree) -> None:
    host.kubeconfig("/a")
    host.kubeconfig("/b")
    host.process(9, "kubelet", "--hostname-override=none")
    host.process(10, "kubelet", "--kubeconfig=/a", "--hostname-override=ten")
    host.process(101, "kubelet", "--kubeconfig=/b", "--hostname-override=hundred")
    host.process(1000, "kubelet", "--kubeconfig=/a", "--hostname-override=thousand")
    assert host.find() == ("/a", "ten", "the running kubelet (pid 10)")


def test_a_process_without_a_status_file_is_the_hosts(host: Tree) -> None:
    host.kubeconfig("/k")
    (host.process(5, "kubelet", "--kubeconfig=/k") / "status").unlink()
    assert host.find()[0] == "/k"


def test_a_kubelet_of_a_cluster_in_a_container_is_not_the_hosts(host: Tree) -> None:
    host.kubeconfig(KUBEADM)
    host.kubeconfig("/k")
    host.process(5, "kubelet", "--kubeconfig=/k", "--hostname-override=kind", nspid="\t48\t1")
    assert host.find() == (KUBEADM, None, "a known place (kubeadm)")


@only_root_gives_away
def test_a_strangers_program_called_kubelet_says_nothing(host: Tree) -> None:
    host.kubeconfig(KUBEADM)
    host.kubeconfig("/k")
    process = host.process(5, "kubelet", "--kubeconfig=/k", "--hostname-override=n2")
    assert host.find()[:2] == ("/k", "n2")
    os.chown(process, 65534, 65534)
    assert host.find()[:2] == (KUBEADM, None)


def test_a_process_that_ends_while_it_is_looked_at_is_passed_over(host: Tree) -> None:
    host.kubeconfig("/k")
    (host.root / "proc/4").mkdir(parents=True)
    host.process(5, "kubelet", "--kubeconfig=/k")
    assert host.find()[2] == "the running kubelet (pid 5)"


def test_the_configuration_goes_before_the_running_kubelet_and_that_before_known_places(
    host: Tree,
) -> None:
    host.kubeconfig(KUBEADM)
    assert host.find()[0] == KUBEADM
    host.kubeconfig("/k")
    host.process(5, "kubelet", "--kubeconfig=/k")
    assert host.find()[0] == "/k"
    host.kubeconfig("/given")
    assert host.find(kubeconfig="/given") == ("/given", None, "the configuration")


# --------------------------------------------------------------------------- the name of the Node


@pytest.mark.parametrize("in_files", [True, False])
def test_the_name_is_read_from_a_kubelets_real_credentials(host: Tree, *, in_files: bool) -> None:
    path = host.write(KUBEADM)
    with ApiServer() as server:
        server.kubeconfig(path, node="gpu-17.example", cert_in_files=in_files)
    if in_files:  # it names the file where it is here, not where it is on the host
        text = path.read_text()
        assert str(host.root) in text
        path.write_text(text.replace(str(host.root), ""))
    assert host.find() == (KUBEADM, "gpu-17.example", "a known place (kubeadm)")


def test_names_go_explicit_certificate_override_hostname(host: Tree) -> None:
    given = {"node_name": "given", "hostname": "Machine"}
    certified = embedded(pem("system:node:certified"))
    host.kubeconfig("/k", **certified)
    host.process(5, "kubelet", "--kubeconfig=/k", "--hostname-override", "Override")
    assert host.find(**given)[1] == "given"
    del given["node_name"]
    assert host.find(**given)[1] == "certified"
    host.kubeconfig("/k")
    assert host.find(**given)[1] == "override"
    host.process(5, "kubelet", "--kubeconfig=/k", "--hostname-override=")
    assert host.find(**given)[1] == "machine"
    assert host.find()[1] is None


@pytest.mark.parametrize("words", [["kubelet"], ["kubelet", "--kubeconfig=/gone"]])
def test_the_override_counts_for_credentials_found_elsewhere(host: Tree, words: list[str]) -> None:
    host.kubeconfig("/given")
    host.process(5, *words, "--hostname-override=n1")
    assert host.find(kubeconfig="/given") == ("/given", "n1", "the configuration")


@pytest.mark.parametrize("order", ["certificate first", "key first"])
def test_the_private_key_may_stand_on_either_side(host: Tree, order: str) -> None:
    parts = [pem("system:node:n1"), key()]
    host.write(CURRENT, b"".join(parts if order == "certificate first" else reversed(parts)))
    host.kubeconfig(KUBEADM, **{"client-certificate": CURRENT})
    assert host.find()[1] == "n1"


@pytest.mark.parametrize("node", ["n1", "n11", "n111"])  # so that some base64 has no padding
def test_the_first_certificate_of_a_chain_is_the_kubelets(host: Tree, node: str) -> None:
    chain = pem(f"system:node:{node}") + pem("system:node:intermediate")
    host.kubeconfig(KUBEADM, **embedded(chain))
    assert host.find()[1] == node


def test_base64_may_be_in_lines_but_has_no_foreign_characters(host: Tree) -> None:
    text = embedded(pem("system:node:n1"))["client-certificate-data"]
    host.kubeconfig(KUBEADM, **{"client-certificate-data": f"{text[:76]}\n  {text[76:]}\n"})
    assert host.find()[1] == "n1"
    host.kubeconfig(KUBEADM, **{"client-certificate-data": f"{text[:76]}%{text[76:]}"})
    assert host.refusal() == refused("the client certificate in it is damaged")


@pytest.mark.parametrize(
    ("kubeconfig", "named", "certificate"),
    [
        ("/etc/kubernetes/kubelet.conf", "pki/client.pem", "/etc/kubernetes/pki/client.pem"),
        ("/var/lib/k0s/kubelet.conf", "../kubelet/client.pem", "/var/lib/kubelet/client.pem"),
        ("/etc/kubernetes/kubelet.conf", "/../../pki/client.pem", "/pki/client.pem"),
    ],
)
def test_a_certificate_is_looked_for_from_its_kubeconfig(
    host: Tree, kubeconfig: str, named: str, certificate: str
) -> None:
    host.write(certificate, pem("system:node:n1"))
    host.path("/var/lib/k0s").mkdir(parents=True, exist_ok=True)
    host.kubeconfig(kubeconfig, **{"client-certificate": named})
    assert host.find()[1] == "n1"


def test_data_in_the_kubeconfig_goes_before_a_path(host: Tree) -> None:
    data = embedded(pem("system:node:data"))
    host.kubeconfig(KUBEADM, **data, **{"client-certificate": "/gone.pem"})
    assert host.find()[1] == "data"


def test_links_lead_where_they_lead_on_the_host(host: Tree, tmp_path: Path) -> None:
    host.write("/data/pki/kubelet-client-2025.pem", pem("system:node:linked"))
    host.link("/var/lib/kubelet", "/data")
    host.link("/data/pki/kubelet-client-current.pem", f"{CURRENT[:-11]}2025.pem")
    host.kubeconfig("/var/snap/microk8s/7449/credentials/k", **{"client-certificate": CURRENT})
    host.link("/var/snap/microk8s/7449/credentials/kubelet.config", "../credentials/k")
    host.link("/var/snap/microk8s/current", "7449")
    place = "/var/snap/microk8s/current/credentials/kubelet.config"
    assert host.find() == (place, "linked", "a known place (MicroK8s)")


@pytest.mark.parametrize(
    "common_name",
    ["system:serviceaccount:a:b", "xsystem:node:n1", "System:node:n1", "system:node:"],
)
def test_a_name_that_is_no_nodes_is_not_taken(host: Tree, common_name: str) -> None:
    host.kubeconfig(KUBEADM, **embedded(pem(common_name)))
    assert host.find(hostname="n9")[1] == "n9"


@pytest.mark.parametrize(
    "user",
    [
        {"token": "t"},
        {"exec": {"command": "aws", "apiVersion": "client.authentication.k8s.io/v1"}},
        {"client-certificate": "", "client-certificate-data": None},
        None,
    ],
)
def test_credentials_without_a_certificate_name_nobody(host: Tree, user: Any) -> None:
    host.write(KUBEADM, yaml.safe_dump(config(user)))
    assert host.find()[1] is None


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    length = len(content)
    size = bytes([length]) if length < 128 else b"\x82" + length.to_bytes(2, "big")
    return bytes([tag]) + size + content


def name(*common_names: str) -> bytes:
    """An organization comes last."""
    pairs = [("550403", common_name) for common_name in common_names]
    return der(
        0x30,
        *(
            der(0x31, der(0x30, der(0x06, bytes.fromhex(oid)), der(0x0C, value.encode())))
            for oid, value in (*pairs, ("55040a", "system:node:organization"))
        ),
    )


def certificate(*, issuer: bytes, subject: bytes, version: bytes = b"") -> dict[str, str]:
    """The shape of one, with nothing in it but names."""
    number, nothing = der(0x02, b"\x01"), der(0x30)
    body = der(0x30, version, number, nothing, issuer, nothing, subject, nothing)
    text = ssl.DER_cert_to_PEM_cert(der(0x30, body, nothing, der(0x03, b"\0")))
    return embedded(text.encode())


@pytest.mark.parametrize("version", [b"", der(0xA0, der(0x02, b"\x02"))])
def test_only_the_subject_names_the_node(host: Tree, version: bytes) -> None:
    issuer, subject = name("system:node:issuer"), name("system:node:n1")
    host.kubeconfig(KUBEADM, **certificate(issuer=issuer, subject=subject, version=version))
    assert host.find()[1] == "n1"
    host.kubeconfig(KUBEADM, **certificate(issuer=issuer, subject=name(), version=version))
    assert host.find()[1] is None


def test_the_last_of_several_names_counts_as_for_the_api_server(host: Tree) -> None:
    subject = name("system:node:first", "system:node:last")
    host.kubeconfig(KUBEADM, **certificate(issuer=name("ca"), subject=subject))
    assert host.find()[1] == "last"


def test_a_name_may_be_as_long_as_a_nodes_name(host: Tree) -> None:
    node = "n" * 253
    subject = name(f"system:node:{node}")
    host.kubeconfig(KUBEADM, **certificate(issuer=name("ca"), subject=subject))
    assert host.find()[1] == node


# --------------------------------------------------------------------------- not there


def test_nothing_anywhere_lists_what_was_looked_for(host: Tree) -> None:
    assert host.refusal(hostname="n1", node_name="n1") == (
        "No running kubelet names its kubeconfig, and none is in a known place: "
        f"{', '.join(KNOWN)}. Start the kubelet, or {REMEDY}"
    )


@pytest.mark.parametrize("make", ["nothing", "dangling link", "file on the way"])
def test_a_configured_kubeconfig_that_is_not_there_is_not_replaced(host: Tree, make: str) -> None:
    host.kubeconfig(KUBEADM)
    if make == "dangling link":
        host.link("/etc/own/k", "/nowhere")
    elif make == "file on the way":
        host.write("/etc/own")
    assert host.refusal(kubeconfig="/etc/own/k") == (
        "The kubeconfig of the configuration is not there yet: /etc/own/k. "
        f"Start the kubelet, or {REMEDY}"
    )


def test_a_running_kubelets_kubeconfig_that_is_not_there_is_not_replaced(host: Tree) -> None:
    host.kubeconfig(KUBEADM)
    host.process(812, "kubelet", "--kubeconfig=/k")
    assert host.refusal() == (
        "The kubeconfig of the running kubelet (pid 812) is not there yet: /k. "
        f"Start the kubelet, or {REMEDY}"
    )


def test_while_the_kubelet_joins_its_kubeconfig_counts_as_not_there(host: Tree) -> None:
    host.kubeconfig(KUBEADM, **{"client-certificate": CURRENT})
    joining = f"{KUBEADM} (its client certificate {CURRENT} is missing)"
    others = ", ".join([joining, *list(KNOWN)[1:]])
    assert f"none is in a known place: {others}. Start" in host.refusal()

    host.process(812, "kubelet", f"--kubeconfig={KUBEADM}")
    assert host.refusal(node_name="n1") == (
        f"The kubeconfig of the running kubelet (pid 812) is not there yet: {joining}. "
        f"Start the kubelet, or {REMEDY}"
    )

    host.write(CURRENT, pem("system:node:n1") + key())
    assert host.find()[1] == "n1"


def test_a_known_place_that_is_not_complete_does_not_hide_the_next(host: Tree) -> None:
    host.kubeconfig(KUBEADM, **{"client-certificate": CURRENT})
    host.kubeconfig(NLLB)
    assert host.find()[0] == NLLB


# --------------------------------------------------------------------------- refused


def refused(why: str) -> str:
    found_by = "of a known place (kubeadm)"
    return f"The kubeconfig {KUBEADM} {found_by} is not used: {why}. Put that right, or {REMEDY}"


@pytest.mark.parametrize("by", ["known", "configuration", "kubelet"])
def test_a_kubeconfig_that_everybody_can_write_is_refused_wherever_it_is_named(
    host: Tree, by: str
) -> None:
    host.kubeconfig(KUBEADM).chmod(0o602)
    host.kubeconfig(NLLB)
    given = {"kubeconfig": KUBEADM} if by == "configuration" else {}
    if by == "kubelet":
        host.process(5, "kubelet", f"--kubeconfig={KUBEADM}")
    assert "is not used: everybody can write it. Put that right, or" in host.refusal(**given)
    host.path(KUBEADM).chmod(0o660)  # MicroK8s has a group for it
    assert host.find(**given)[0] == KUBEADM


@only_root_gives_away
def test_a_strangers_kubeconfig_is_refused(host: Tree) -> None:
    os.chown(host.kubeconfig(KUBEADM), 65534, 0)
    host.kubeconfig(NLLB)
    assert host.refusal() == refused("it belongs to user 65534, not to root")


@only_root_gives_away
def test_a_link_to_a_strangers_kubeconfig_is_refused(host: Tree) -> None:
    os.chown(host.kubeconfig("/home/eve/k"), 65534, 0)
    host.link(KUBEADM, "/home/eve/k")
    assert host.refusal() == refused("it belongs to user 65534, not to root")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def round_link(path: Path) -> None:
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    path.write_text(yaml.safe_dump(config({"token": "t"})).ljust(MAX_SIZE + 1, "\n"))


@pytest.mark.parametrize("of", ["kubeconfig", "certificate"])
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (fifo, "is not a regular file"),
        (Path.mkdir, "cannot be read: Is a directory"),
        (round_link, "cannot be read: Too many levels of symbolic links"),
        (huge, "is larger than 1 MiB"),
    ],
)
def test_what_is_no_small_regular_file_is_refused(
    host: Tree, make: Callable[[Path], None], why: str, of: str
) -> None:
    target = KUBEADM
    if of == "certificate":
        target = CURRENT
        host.kubeconfig(KUBEADM, **{"client-certificate": CURRENT})
    host.path(target).parent.mkdir(parents=True, exist_ok=True)
    make(host.path(target))
    what = "it" if of == "kubeconfig" else f"its client certificate {CURRENT}"
    assert host.refusal() == refused(f"{what} {why}")


def test_a_file_of_just_1_MiB_is_read(host: Tree) -> None:
    text = yaml.safe_dump(config({"token": "t"}))
    host.write(KUBEADM, text.ljust(MAX_SIZE, "\n"))
    assert host.find()[0] == KUBEADM


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told_so(host: Tree) -> None:
    host.kubeconfig(KUBEADM).chmod(0o200)
    assert host.refusal() == refused("it cannot be read: Permission denied")


def test_a_kubeconfig_that_is_no_yaml_is_told_with_its_place(host: Tree) -> None:
    host.write(KUBEADM, "users:\n- {name: [\n")
    refusal = host.refusal()
    assert refusal.startswith(refused("it is not valid YAML: X").partition("X")[0])
    assert "line 3, column 1" in refusal


def changed(**parts: Any) -> str:
    return yaml.safe_dump({**config({"token": "t"}), **parts})


DAMAGED = "it is damaged, or its current-context leads to no user"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", DAMAGED, id="empty"),
        pytest.param("- a\n- b\n", DAMAGED, id="list"),
        pytest.param(changed(**{"current-context": ""}), DAMAGED, id="no-context"),
        pytest.param(changed(**{"current-context": ["x"]}), DAMAGED, id="context-is-list"),
        pytest.param(changed(contexts=None), DAMAGED, id="no-contexts"),
        pytest.param(changed(contexts=[7]), DAMAGED, id="contexts-of-numbers"),
        pytest.param(changed(users=[]), DAMAGED, id="no-users"),
        pytest.param(changed(users=[{"name": "node"}]), DAMAGED, id="no-user"),
        pytest.param(changed(users=[{"name": "node", "user": "x"}]), DAMAGED, id="user-is-text"),
        pytest.param(
            yaml.safe_dump(config({"client-certificate-data": 7})), DAMAGED, id="data-is-number"
        ),
        pytest.param(yaml.safe_dump(config({"client-certificate": ["/x"]})), DAMAGED, id="list"),
        pytest.param(changed() + "x: 2025-13-45\n", DAMAGED, id="no-date"),
        pytest.param(changed() + "x: !!timestamp x\n", DAMAGED, id="no-timestamp"),
        pytest.param(changed() + "x: !!int ''\n", DAMAGED, id="no-number"),
        pytest.param(changed() + 'x: "\\Uffffffff"\n', DAMAGED, id="no-character"),
        pytest.param(changed() + f"x: {'[' * 5000}\n", DAMAGED, id="deep"),
        pytest.param(
            yaml.safe_dump(config({"client-certificate": "a\0b"})),
            r"its client certificate /etc/kubernetes/a\x00b cannot be read: embedded null byte",
            id="null-in-a-path",
        ),
        pytest.param(
            yaml.safe_dump(config({"client-certificate-data": "%%%="})),
            "the client certificate in it is damaged",
            id="no-base64",
        ),
    ],
)
def test_a_damaged_kubeconfig_is_refused_and_says_why(host: Tree, text: str, why: str) -> None:
    host.write(KUBEADM, text)
    assert host.refusal(node_name="n1", hostname="n1") == refused(why)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"\xc3\x28: x", b"a: \x00\x01", b"x: !!python/object:os.system {}"]
)
def test_bytes_that_are_no_text_and_foreign_tags_are_no_yaml(host: Tree, content: bytes) -> None:
    host.write(KUBEADM, content)
    assert "is not used: it is not valid YAML" in host.refusal()


def _without_end(text: bytes) -> bytes:
    return text[: text.index(b"-----END")]


def _half(text: bytes) -> bytes:
    body = ssl.PEM_cert_to_DER_cert(text.decode())
    return ssl.DER_cert_to_PEM_cert(body[: len(body) // 2]).encode()


def _letters(text: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(b"no certificate at all").encode()


def _nothing(text: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(b"").encode()


def _one_byte(text: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(b"0").encode()


def _umlauts(text: bytes) -> bytes:
    return text.replace(b"CERTIFICATE-----\n", b"CERTIFICATE-----\n\xc3\xa4", 1)


def _padding(text: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\nMIIBx\n-----END CERTIFICATE-----\n"


def _key_only(text: bytes) -> bytes:
    return key()


def _empty(text: bytes) -> bytes:
    return b"\n"


@pytest.mark.parametrize("where", ["file", "data"])
@pytest.mark.parametrize(
    "damage",
    [_without_end, _half, _letters, _nothing, _one_byte, _umlauts, _padding, _key_only, _empty],
)
def test_a_damaged_certificate_is_refused_and_never_a_traceback(
    host: Tree, damage: Callable[[bytes], bytes], where: str
) -> None:
    content = damage(pem("system:node:n1"))
    if where == "file":
        host.write(CURRENT, content)
        host.kubeconfig(KUBEADM, **{"client-certificate": CURRENT})
        why = f"its client certificate {CURRENT} is damaged"
    else:
        host.kubeconfig(KUBEADM, **embedded(content))
        why = "the client certificate in it is damaged"
    assert host.refusal(hostname="n1") == refused(why)


def test_a_certificate_cut_off_anywhere_is_never_a_traceback(host: Tree) -> None:
    whole = ssl.PEM_cert_to_DER_cert(pem("system:node:n1").decode())
    for length in (*range(40), *range(40, len(whole), 11)):
        cut = ssl.DER_cert_to_PEM_cert(whole[:length]).encode()
        host.kubeconfig(KUBEADM, **embedded(cut))
        assert host.refusal() == refused("the client certificate in it is damaged")


def test_what_a_command_line_says_cannot_garble_the_message(host: Tree) -> None:
    host.process(5, "kubelet", "--kubeconfig=/a\nb\x1b[2J")
    assert r"is not there yet: /a\nb\x1b[2J. Start" in host.refusal()
