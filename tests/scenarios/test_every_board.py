"""Every vGPU type and every GI profile of every board comes up, and is then left alone."""

from __future__ import annotations

import pytest

from gpu_bootstate.catalog.reader import NodeSpec, node_names, node_spec
from tests.support.node import NodeMaker, config


def _sriov(spec: NodeSpec) -> tuple[str, int]:
    """The first GPU that has VFs; a T4 has none."""
    pf, model = next((pf, m) for pf, m in spec.gpus if m.host_vgpu_mode == "sriov")
    return str(pf), model.sriov_totalvfs


@pytest.mark.parametrize("board", node_names())
def test_as_many_vgpus_of_each_type_as_fit(node: NodeMaker, board: str) -> None:
    spec = node_spec(board)
    pf, vfs = _sriov(spec)
    model = dict(spec.gpus)[next(p for p, _ in spec.gpus if str(p) == pf)]
    made = node(board)
    for kind in model.vgpu_types:
        count = min(kind.max_per_gpu, vfs)
        text = config({pf: f'{{vgpus: {{"{kind.name}": {count}}}}}'})
        result = made.apply(text)
        assert result["exit_code"] == 0, (kind.name, result["gpus"][0]["message"])
        assert all(call.ok for call in made.calls)
        assert made.types(pf) == dict.fromkeys(range(count), kind.name.split()[-1])
        assert made.apply(text)["exit_code"] == 0
        assert made.calls == [], kind.name
        plan = made.look(text).plan
        assert plan.is_empty


@pytest.mark.parametrize("board", node_names())
def test_as_many_instances_of_each_profile_as_fit(node: NodeMaker, board: str) -> None:
    spec = node_spec(board)
    pf, _ = _sriov(spec)
    made = node(board)
    for profile in made.sim.profiles(made.gpu(pf)):
        text = config({pf: f'{{mig: {{"{profile.name}": {profile.max_instances}}}}}'})
        result = made.apply(text)
        assert result["exit_code"] == 0, (profile.name, result["gpus"][0]["message"])
        assert all(call.ok for call in made.calls)
        assert [name for name, _ in made.layout(pf)] == [profile.name] * profile.max_instances
        assert made.apply(text)["exit_code"] == 0
        assert made.calls == [], profile.name
