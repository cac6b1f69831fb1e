"""Observe, resolve, plan: the reading half that every command shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_bootstate.files import read_json
from gpu_bootstate.hardware.protocol import Hardware
from gpu_bootstate.model import Bdf, Card, DesiredState, ObservedNode, Plan
from gpu_bootstate.observe import observe
from gpu_bootstate.paths import Paths
from gpu_bootstate.plan import make_plan
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Code, Finding
from gpu_bootstate.resolve import Resolution, resolve


@dataclass(frozen=True, slots=True)
class View:
    """One look at the node, in the light of a configuration."""

    node: ObservedNode
    resolution: Resolution
    plan: Plan

    @property
    def absent(self) -> int:
        """How much of the configuration could be tied to no GPU: each of these keeps the gate of
        the node shut under policy `all`, whatever the GPUs are that could.
        """
        return len(self.plan.missing) + len(self.resolution.problems)

    def verified(self, pf: Bdf) -> dict[str, object]:
        """What this look saw of a GPU whose plan came out empty; goes into its gate file."""
        gpu = self.node.gpu(pf)
        plan = self.plan.gpu(pf)
        if gpu is None or plan is None:
            return {}
        names = {t.vgpu_type_id: t.name for t in gpu.vgpu_types}
        profiles = {p.gi_profile_id: p.name for p in gpu.gi_profiles}
        return {
            "profile": plan.profile_name,
            "uuid": gpu.facts.uuid if gpu.facts else None,
            "serial": gpu.facts.serial if gpu.facts else None,
            "gpu_instances": [
                {
                    "id": gi.gi_id,
                    "profile": profiles.get(gi.gi_profile_id, str(gi.gi_profile_id)),
                    "start": gi.placement.start,
                    "size": gi.placement.size,
                }
                for gi in gpu.gpu_instances
            ],
            "vgpus": {
                str(vf.bdf): names.get(vf.vgpu_type_id, str(vf.vgpu_type_id))
                for vf in gpu.vfs
                if vf.vgpu_type_id
            },
        }


def look(hw: Hardware, desired: DesiredState, remembered: Mapping[Bdf, Card]) -> View:
    """Raises ConfigInvalid when the configuration does not suit this node.

    Raises HardwareError only when sysfs itself cannot be read.
    """
    view = look_anyway(hw, desired, remembered)
    if view.resolution.problems and view.node.driver.problem is None:
        raise ConfigInvalid(view.resolution.problems)
    if desired.entries:
        # Without a driver it cannot be told whether the file suits; that comes first.
        view = replace(
            view, plan=replace(view.plan, refusal=view.plan.refusal or view.node.driver.problem)
        )
    return view


def look_anyway(hw: Hardware, desired: DesiredState, remembered: Mapping[Bdf, Card]) -> View:
    """As `look`, for the middle of a run: what does not suit becomes a refusal of that GPU."""
    node = observe(hw, parallel=desired.policy.parallel)
    resolution = resolve(desired, node, remembered)
    plan = make_plan(
        node,
        desired.policy,
        targets=resolution.targets,
        deferred=[(pf, entry.profile.name) for pf, entry in resolution.deferred],
        missing=[finding for _, _, finding in resolution.missing],
        notes=resolution.notices,
        unclaimed=resolution.unclaimed,
    )
    return View(node, resolution, plan)


def config_finding(invalid: ConfigInvalid) -> Finding:
    return Finding.of(
        Code.CONFIG_INVALID, count=len(invalid.problems), first=str(invalid.problems[0])
    )


def remembered_cards(paths: Paths) -> dict[Bdf, Card]:
    """Which card was where when it last converged, from the last run's record."""
    recorded = (read_json(paths.last_run) or {}).get("cards")
    cards: dict[Bdf, Card] = {}
    if isinstance(recorded, dict):
        for text, card in recorded.items():
            try:
                cards[Bdf.parse(str(text))] = Card(card["uuid"], card["serial"])
            except (ValueError, TypeError, KeyError):
                continue  # a damaged record says nothing, and is no reason to stop
    return cards
