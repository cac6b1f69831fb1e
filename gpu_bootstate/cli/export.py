"""`export`: the live state as a configuration that plans to nothing on this node."""

from __future__ import annotations

import click

from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.model import GpuFacts, ObservedGpu, ObservedNode, Policy


@click.command(name="export")
@click.pass_obj
def command(where: Where) -> None:
    """Print the live state as a configuration.

    GPUs that are bare (no MIG, no VFs) are left out, as comments. Placements and VFs are written
    out where the order alone would not give them again.
    """
    from gpu_bootstate.observe import observe

    with where.hardware(Policy()) as hw:
        node = observe(hw)
    click.echo(config_text(node), nl=False)
    if node.driver.problem is not None:
        click.echo(f"gpu-bootstate: {node.driver.problem.message}", err=True)
        click.echo(f"  {node.driver.problem.remedy}", err=True)
        raise SystemExit(node.driver.problem.condition.exit_code)


def config_text(node: ObservedNode) -> str:
    """YAML. Pure, so that a captured node can be exported too."""
    profiles: dict[str, str] = {}  # body -> name
    entries: list[str] = []
    comments: list[str] = []
    partial = False
    for gpu in node.gpus:
        if gpu.facts is None:
            why = gpu.findings[0].message if gpu.findings else f"its driver is {gpu.pci.driver}"
            comments.append(f"# {gpu.pf} is left out: {why}")
            continue
        if (beyond := _beyond_a_profile(gpu, gpu.facts)) is not None:
            comments.append(f"# {gpu.pf} ({gpu.facts.name}) is left out: {beyond}")
            continue
        body = _profile_body(gpu, gpu.facts)
        if body is None:
            comments.append(f"# {gpu.pf} ({gpu.facts.name}) is left out: it is bare")
            continue
        if gpu.facts.mig is not None and gpu.facts.mig.is_pending:
            comments.append(f"# {gpu.pf} has a pending MIG mode; the current one is written here")
        partial = partial or 0 < gpu.pci.sriov_numvfs < gpu.pci.sriov_totalvfs
        name = profiles.setdefault(body, f"live-{len(profiles) + 1}")
        entries.append(f'  - match: {{pci: "{gpu.pf}"}}\n    profile: {name}\n')
    lines = ["version: v1\n"]
    if profiles:
        lines.append("profiles:\n")
        lines += [f"  {name}:\n{body}" for body, name in profiles.items()]
        lines += ["gpus:\n", *entries]
    if partial:
        lines.append("policy:\n  allow-fewer-vfs: true\n")
    return "".join([*lines, *(f"{comment}\n" for comment in comments)])


def _beyond_a_profile(gpu: ObservedGpu, facts: GpuFacts) -> str | None:
    """Why no profile can say what this GPU is; what is written must be read again."""
    if facts.mig and facts.mig.current and not gpu.gpu_instances:
        return "it is in MIG mode without GPU instances, which no profile can say"
    profiles = {profile.gi_profile_id for profile in gpu.gi_profiles}
    for gi in gpu.gpu_instances:
        if gi.gi_profile_id not in profiles:
            return f"the driver has no name for GPU instance profile {gi.gi_profile_id}"
    types = {each.vgpu_type_id for each in gpu.vgpu_types}
    for vf in gpu.vfs:
        if vf.vgpu_type_id and vf.vgpu_type_id not in types:
            return f"the driver has no name for vGPU type {vf.vgpu_type_id} on {vf.bdf}"
    return None


def _profile_body(gpu: ObservedGpu, facts: GpuFacts) -> str | None:
    """The lines of a profile; None for a bare GPU."""
    mig_on = bool(facts.mig and facts.mig.current)
    if not gpu.pci.sriov_numvfs:
        # Without VFs there is no vGPU geometry that could be brought back.
        return None
    body = "    mode: vgpu\n"
    names = {p.gi_profile_id: p.name for p in gpu.gi_profiles}
    if mig_on:
        starts: dict[str, list[int]] = {}
        for gi in sorted(gpu.gpu_instances, key=lambda gi: gi.placement):
            starts.setdefault(names[gi.gi_profile_id], []).append(gi.placement.start)
        body += f"    mig: {_mapping(starts)}\n"
        if any(gi.mixed_size for gi in gpu.gpu_instances):
            body += "    mixed-size: true\n"
        if gpu.gpu_instances and all(gi.compute_instances for gi in gpu.gpu_instances):
            body += "    compute-instances: true\n"
    elif facts.mixed_size:
        body += "    mixed-size: true\n"
    return body + _vgpus(gpu)


def _vgpus(gpu: ObservedGpu) -> str:
    types = {t.vgpu_type_id: t.name for t in gpu.vgpu_types}
    indexes: dict[str, list[int]] = {}
    for vf in gpu.vfs:
        if vf.vgpu_type_id:
            indexes.setdefault(types[vf.vgpu_type_id], []).append(vf.index)
    if not indexes:
        return ""
    return f"    vgpus: {_mapping(indexes)}\n"


def _mapping(lists: dict[str, list[int]]) -> str:
    """A count where the parser's own order gives the same numbers, else the numbers."""
    in_order = [number for numbers in lists.values() for number in numbers]
    if in_order == list(range(len(in_order))) and len(lists) == 1:
        items = (f'"{name}": {len(numbers)}' for name, numbers in lists.items())
    else:
        items = (f'"{name}": {numbers}' for name, numbers in lists.items())
    return "{" + ", ".join(items) + "}"
