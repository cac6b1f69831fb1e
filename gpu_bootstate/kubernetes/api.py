"""The few requests that are made to the API server, with the official client.

The client is an optional extra and takes a second to import: nothing on the boot path does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config

from gpu_bootstate.kubernetes.publish import Conflict, Forbidden, Gone, Unanswered
from gpu_bootstate.yaml_marks import abridge

_CONNECT_S, _READ_S = 5.0, 15.0
_LONGEST = 300  # characters of a message of the server
_FOR_GOOD = (400, 403, 405, 413, 415, 422)  # the same request gets the same answer


class Api:
    """A NodeApi over HTTPS."""

    def __init__(self, kubeconfig: Path, node_name: str) -> None:
        """Raises Unanswered when the file cannot be used (yet)."""
        self.node_name = node_name
        configuration = client.Configuration()
        try:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                str(kubeconfig), client_configuration=configuration
            )
            configuration.retries = False  # who calls decides when to try again
            _make_sendable(configuration)
            self._core = client.CoreV1Api(client.ApiClient(configuration))
        except OSError as err:
            raise Unanswered(f"{kubeconfig} cannot be used: {err.strerror}") from None
        # From None, and without the text: it may have parts of the file in it, and those are keys.
        except Exception as err:
            what = type(err).__name__
            raise Unanswered(f"{kubeconfig} cannot be used: it is damaged ({what})") from None

    def node(self) -> dict[str, Any]:
        return self._ask(self._core.read_node, self.node_name)

    def patch_node(self, body: dict[str, Any]) -> None:
        self._ask(self._core.patch_node, self.node_name, body)

    def patch_node_status(self, body: dict[str, Any]) -> None:
        self._ask(self._core.patch_node_status, self.node_name, body)

    def create_event(self, namespace: str, body: dict[str, Any]) -> None:
        """An event of that name that is there already is left."""
        try:
            self._ask(self._core.create_namespaced_event, namespace, body)
        except Conflict:
            return

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Of this node alone: a kubelet may not list others."""
        found = self._ask(
            self._core.list_pod_for_all_namespaces,
            field_selector=f"spec.nodeName={self.node_name}",
            label_selector=selector,
        )
        return [item for item in found.get("items", []) if isinstance(item, dict)]

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """That pod and no later one of its name."""
        body = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=uid))
        self._ask(self._core.delete_namespaced_pod, name, namespace, body=body)

    def _ask(self, method: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            data = method(
                *arguments,
                **named,
                _preload_content=False,
                _request_timeout=(_CONNECT_S, _READ_S),
            ).data
        except client.ApiException as err:
            raise _explained(err) from err
        except (urllib3.exceptions.HTTPError, OSError) as err:
            raise Unanswered(f"the API server does not answer: {_short(str(err))}") from err
        except ValueError as err:
            # Its text may be that of a header, which is a token.
            what = type(err).__name__
            raise Unanswered(f"the request cannot be made or its answer read ({what})") from None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise Unanswered("the API server's answer is no JSON") from None
        return value if isinstance(value, dict) else {}


def _explained(err: client.ApiException) -> Exception:
    text = f"{err.status} {err.reason}: {_message(err)}"
    if err.status in _FOR_GOOD:
        return Forbidden(text)
    if err.status == 404:
        return Gone(text)
    if err.status == 409:
        return Conflict(text)
    # 401 among them: a client certificate is renewed by the kubelet, and the file read again.
    return Unanswered(text, _retry_after_s(err))


def _message(err: client.ApiException) -> str:
    try:
        return _short(str(json.loads(err.body or "")["message"]))
    except (TypeError, ValueError, KeyError, RecursionError):
        return _short(str(err.body or ""))


def _short(text: str) -> str:
    return abridge(" ".join(text.split()), _LONGEST)


def _retry_after_s(err: client.ApiException) -> float:
    text = (err.headers or {}).get("Retry-After", "")[:9]
    return min(float(text), 300.0) if text.isascii() and text.isdecimal() else 0.0


def _make_sendable(configuration: client.Configuration) -> None:
    """Raises ValueError for a token that no header can have. A file's last line ends in a break."""
    configuration.refresh_api_key_hook = None  # it would put it back; each try reads the file anew
    for name, value in configuration.api_key.items():
        configuration.api_key[name] = value.strip()
        if not (value.isascii() and value.strip().isprintable()):
            raise ValueError
