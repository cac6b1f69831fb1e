"""What a request may ask for: refusals, the node's rights, validation, selectors and patches.

Messages and status codes follow kubernetes/kubernetes: node_authorizer.go,
noderestriction/admission.go, api/errors/errors.go, validation/validation.go and events.go,
handlers/patch.go.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Object = dict[str, Any]

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)
_PATCHES = tuple(f"application/{kind}-patch+json" for kind in ("json", "merge", "strategic-merge"))
_RESOURCE = re.compile(
    r"/(?:api/v1|apis/(?P<group>events\.k8s\.io)/v1)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)
_KUBELET_LABELS = frozenset(
    f"{domain}/{name}"
    for domain, names in {
        "beta.kubernetes.io": ("arch", "instance-type", "os"),
        "failure-domain.beta.kubernetes.io": ("region", "zone"),
        "kubernetes.io": ("arch", "hostname", "os"),
        "node.kubernetes.io": ("instance-type",),
        "topology.kubernetes.io": ("region", "zone"),
    }.items()
    for name in names
)
_KEY = re.compile(
    r"(?-i:[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[a-z0-9]([-\w.]{0,61}[a-z0-9])?", re.ASCII | re.I
)
_VALUE = re.compile(r"([a-z0-9]([-\w.]{0,61}[a-z0-9])?)?", re.ASCII | re.I)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[-+]\d\d:\d\d)")
# Go's layout for MicroTime wants exactly six digits, which clients get wrong.
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[-+]\d\d:\d\d)")
_TIMES = {
    **dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), _TIME),
    **dict.fromkeys(("firstTimestamp", "lastTimestamp"), _TIME),
    **dict.fromkeys(("eventTime", "lastObservedTime"), _MICRO_TIME),
}
_FIELDS = {
    "nodes": ("metadata.name",),
    "pods": ("metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"),
    "configmaps": ("metadata.name", "metadata.namespace"),
}


@dataclass(frozen=True)
class Request:
    """What a client sent. `status` is None where nothing was answered (yet)."""

    method: str
    path: str
    query: Mapping[str, str]
    user: str | None
    content_type: str
    body: Any
    status: int | None = None


class Refused(Exception):
    def __init__(
        self, code: int, message: str, reason: str = "", details: Object | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason or _REASONS.get(code, ""),
            **({"details": details} if details else {}),
            "code": code,
        }


class Call(NamedTuple):
    """A request for a resource; `node` is set where a kubelet asks."""

    verb: str
    group: str
    namespace: str
    resource: str
    name: str
    subresource: str
    query: Mapping[str, str]
    content_type: str
    body: Any
    user: str
    node: str | None

    @property
    def qualified(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def refused(self, code: int, message: str, reason: str = "") -> Refused:
        group = {"group": self.group} if self.group else {}
        named = {"name": self.name} if self.name else {}
        return Refused(code, message, reason, {**named, **group, "kind": self.resource})

    def forbidden(self, why: str) -> Refused:
        """What an admission plugin says."""
        named = f' "{self.name}"' if self.name else ""
        return self.refused(403, f"{self.qualified}{named} is forbidden: {why}")

    def denied(self, why: str = "") -> Refused:
        """What an authorizer says."""
        resource = "/".join(filter(None, (self.resource, self.subresource)))
        place = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        text = f'User "{self.user}" cannot {self.verb} resource "{resource}"'
        text += f' in API group "{self.group}" {place}'
        return self.forbidden(f"{text}: {why}" if why else text)

    def conflict(self, why: str = _MODIFIED) -> Refused:
        text = f'Operation cannot be fulfilled on {self.qualified} "{self.name}": {why}'
        return self.refused(409, text)


def call_of(request: Request) -> Call | None:
    found = _RESOURCE.fullmatch(request.path)
    if not found:
        return None
    part = {key: value or "" for key, value in found.groupdict().items()}
    verb = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch"}.get(
        request.method, request.method.lower()
    )
    if verb == "get" and not part["name"]:
        verb = "list"
    user = request.user or "system:anonymous"
    kubelet = user.startswith("system:node:")
    return Call(
        verb=verb,
        query=request.query,
        content_type=request.content_type,
        body=request.body,
        user=user,
        node=user.removeprefix("system:node:") if kubelet else None,
        **part,
    )


def unsupported(accepted: Sequence[str]) -> Refused:
    text = "the body of the request was in an unknown format - accepted media types include: "
    return Refused(415, text + ", ".join(accepted))


def refuse_invalid(kind: str, name: str, problems: Sequence[str]) -> None:
    """As the server lists the problems that it finds in an object."""
    if problems:
        listed = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        text = f'{kind} "{name}" is invalid: {listed}'
        raise Refused(422, text, details={"name": name, "kind": kind})


def admit_node(call: Call, node: str, old: Object, new: Object) -> None:
    """NodeRestriction. It sees what was sent, before the part of the other endpoint is restored."""
    if call.name != node:
        raise call.forbidden(f'node "{node}" is not allowed to modify node "{call.name}"')
    taints = [(thing.get("spec") or {}).get("taints") or [] for thing in (old, new)]
    if taints[0] != taints[1]:
        raise call.forbidden(f'node "{node}" is not allowed to modify taints')
    before, after = (thing["metadata"].get("labels") or {} for thing in (old, new))
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    if forbidden := sorted(key for key in changed if not _kubelet_may_set(key)):
        raise call.forbidden(f"is not allowed to modify labels: {', '.join(forbidden)}")


def _kubelet_may_set(label: str) -> bool:
    domain = label.rpartition("/")[0]

    def under(*domains: str) -> bool:
        return any(domain == one or domain.endswith(f".{one}") for one in domains)

    if under("node-restriction.kubernetes.io"):
        return False
    if not under("kubernetes.io", "k8s.io"):
        return True
    return label in _KUBELET_LABELS or under("kubelet.kubernetes.io", "node.kubernetes.io")


def check_decodes(thing: Object, call: Call) -> None:
    """Refuses what Go's types do not take: labels that are no text, times in another form."""
    kind = {"nodes": "Node", "events": "Event"}[call.resource]

    def bad(why: str) -> Refused:
        if call.verb == "patch":
            return Refused(422, f' "" is invalid: patch: Invalid value: {why}')
        return Refused(400, f"{kind} in version v1 cannot be handled as a {kind}: {why}")

    for key in ("labels", "annotations"):
        for value in (thing["metadata"].get(key) or {}).values():
            if not isinstance(value, str):
                type_name = {bool: "bool", dict: "object", list: "array"}.get(type(value), "number")
                raise bad(
                    f"json: cannot unmarshal {type_name} into Go struct field"
                    f" ObjectMeta.metadata.{key} of type string"
                )
    conditions = (thing.get("status") or {}).get("conditions") or []
    for part in (thing, thing.get("series") or {}, *conditions):
        for key, form in _TIMES.items():
            value = part.get(key)
            if value is not None and not (isinstance(value, str) and form.fullmatch(value)):
                layout = "2006-01-02T15:04:05" + (".000000" if form is _MICRO_TIME else "")
                raise bad(f'parsing time "{value}" as "{layout}Z07:00": cannot parse')


def validate_node(thing: Object) -> None:
    meta = thing["metadata"]
    problems = []
    for part in ("labels", "annotations"):
        for key, value in (meta.get(part) or {}).items():
            if not _KEY.fullmatch(key):
                problems.append(
                    f'metadata.{part}: Invalid value: "{key}": name part must consist of'
                    " alphanumeric characters, '-', '_' or '.'"
                )
            if part == "labels" and not _VALUE.fullmatch(value):
                problems.append(
                    f'metadata.labels: Invalid value: "{value}": a valid label must be an empty'
                    " string or consist of alphanumeric characters, '-', '_' or '.'"
                )
    refuse_invalid("Node", meta["name"], problems)


def event_problems(event: Object, call: Call) -> list[str]:
    strict = bool(call.group)
    involved = event.get("regarding" if strict else "involvedObject") or {}
    controller = event.get("reportingController" if strict else "reportingComponent")
    problems = []
    if not event["metadata"].get("name"):
        problems.append("metadata.name: Required value: name or generateName is required")
    if strict and not event.get("eventTime"):
        problems.append("eventTime: Required value")
    if strict and event.get("type") not in ("Normal", "Warning"):
        problems.append(f'type: Invalid value: "": has invalid value: {event.get("type", "")}')
    place = involved.get("namespace", "")
    if event.get("eventTime"):
        fits = bool(place) or call.namespace in ("default", "kube-system")
        texts = {"reportingController": controller}
        texts |= {key: event.get(key) for key in ("reportingInstance", "action", "reason")}
        problems += [f"{key}: Required value" for key, text in texts.items() if not text]
        texts |= {"message": event.get("note" if strict else "message")}
        limits = {"message": 1024, "reportingController": 317}
        problems += [
            f'{key}: Invalid value: "": can have at most {limits.get(key, 128)} characters'
            for key, text in texts.items()
            if len((text or "").encode()) > limits.get(key, 128)
        ]
    else:
        fits = (place or "default") == call.namespace
    if not fits:
        problems.append(
            f'involvedObject.namespace: Invalid value: "{place}": does not match event.namespace'
        )
    return problems


# Selecting


def requirements(selector: str) -> list[tuple[str, bool, str]]:
    """Key, whether it is to be equal, and the value."""
    found = []
    for one in filter(None, selector.split(",")):
        parts = re.fullmatch(r"([^=!\s]+)(==?|!=)([^=!\s]*)", one)
        if not parts:
            raise Refused(400, f'unable to parse requirement: "{one}" (= and != are known here)')
        found.append((parts[1], parts[2] != "!=", parts[3]))
    return found


def selects(call: Call) -> Callable[[Object], bool]:
    """Whether the request's selectors want an object."""
    by_label = requirements(call.query.get("labelSelector", ""))
    by_field = requirements(call.query.get("fieldSelector", ""))
    fields = _FIELDS[call.resource]
    for key, _, _ in by_field:
        if key not in fields:
            raise Refused(400, f"field label not supported: {key}")

    def wanted(thing: Object) -> bool:
        labels: Mapping[str, str] = thing["metadata"].get("labels") or {}
        return all((labels.get(key) == value) == equal for key, equal, value in by_label) and all(
            (thing[key.partition(".")[0]].get(key.partition(".")[2]) == value) == equal
            for key, equal, value in by_field
        )

    return wanted


# Patching


def patched(old: Object, call: Call) -> Any:
    if call.content_type not in _PATCHES:
        raise unsupported(_PATCHES)
    if isinstance(call.body, list) != (call.content_type == _PATCHES[0]):
        raise call.refused(400, "error decoding patch: json: cannot unmarshal into Go value")
    new = copy.deepcopy(old)
    if call.content_type == _PATCHES[0]:
        try:
            _json_patch(new, call.body)
        except (LookupError, TypeError, ValueError):
            # The server tells no more than this, whatever does not fit, `test` included.
            text = "the server rejected our request due to an error in our request"
            raise Refused(422, text) from None
    else:
        _merge(new, call.body, strategic=call.content_type == _PATCHES[2])
    return new


def _merge(old: Object, patch: Object, *, strategic: bool) -> None:
    for key, value in patch.items():
        if strategic and key.startswith("$"):
            if key.startswith("$setElementOrder/"):
                continue  # an order alone
            raise Refused(400, f"this stand-in does not know {key}")
        if value is None:
            old.pop(key, None)
        elif isinstance(value, dict):
            if not isinstance(old.get(key), dict):
                old[key] = {}
            _merge(old[key], value, strategic=strategic)
        elif strategic and key in ("conditions", "addresses"):
            old[key] = _merged_by_type(old.get(key) or [], value)
        else:
            # Taints too: they have no merge key.
            old[key] = copy.deepcopy(value)


def _merged_by_type(old: Sequence[Object], patch: Sequence[Object]) -> list[Object]:
    merged = {one["type"]: dict(one) for one in old}
    for one in patch:
        if "type" not in one:
            raise Refused(400, "map: does not contain declared merge key: type")
        if one.get("$patch") == "delete":
            merged.pop(one["type"], None)
        else:
            _merge(merged.setdefault(one["type"], {}), one, strategic=True)
    return list(merged.values())


def _json_patch(document: Object, operations: Sequence[Object]) -> None:
    """Add, remove, replace and test. Raises LookupError, TypeError or ValueError."""
    for one in operations:
        _, *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")
        )
        place: Any = document
        for part in parents:
            place = place[int(part) if isinstance(place, list) else part]
        key: Any = last
        if isinstance(place, list):
            key = len(place) if last == "-" else int(last)
        match one["op"]:
            case "add" if isinstance(place, list):
                place.insert(key, one["value"])
            case "add":
                place[key] = one["value"]
            case "replace":
                place[key]  # has to be there
                place[key] = one["value"]
            case "remove":
                del place[key]
            case "test":
                if (place[key] if isinstance(place, list) else place.get(key)) != one["value"]:
                    raise ValueError(one["path"])
            case other:
                raise Refused(400, f"this stand-in does not know the operation {other}")
