# ruff: noqa: E501 -- messages are compared whole, each on one line
"""What a configuration comes to on a node, as tables; nothing here has touched a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from textwrap import dedent

import pytest

from gpu_bootstate.config import parse
from gpu_bootstate.model import (
    Bdf,
    Card,
    DriverInfo,
    GpuTarget,
    HostVgpuMode,
    Mode,
    ObservedGpu,
    ObservedNode,
    Vf,
    VgpuType,
)
from gpu_bootstate.reasons import Code, Finding
from gpu_bootstate.resolve import Resolution, resolve
from tests.support.mig_tables import (
    H200_TYPES,
    a100,
    gpu,
    hgx_h200,
    l40s,
    node,
    off_vgpu_host,
    rtx_pro,
    unread,
    with_serial,
)

PF_17, PF_3D, PF_60 = Bdf.parse("17:00.0"), Bdf.parse("3d:00.0"), Bdf.parse("60:00.0")


def config(entries: str, **profiles: str) -> str:
    lines = [f"  {name}: {profile}" for name, profile in profiles.items()]
    text = "version: v1\n"
    if lines:
        text += "profiles:\n" + "\n".join(lines) + "\n"
    return text + "gpus:\n" + dedent(entries).strip("\n") + "\n"


def resolved(
    text: str, *gpus: ObservedGpu, remembered: Mapping[Bdf, Card] | None = None
) -> Resolution:
    return resolve(parse(text, "c.yaml"), node(*gpus), remembered or {})


def on_one(card: ObservedGpu, profile: str) -> Resolution:
    """One card, matched by its slot, with an inline profile on line 4."""
    entry = f'- match: {{pci: "{card.pf}"}}\n  profile: {profile}'
    return resolved(config(entry), card)


def complaints(resolution: Resolution) -> list[str]:
    return [str(problem) for problem in resolution.problems]


def target(resolution: Resolution) -> GpuTarget:
    assert complaints(resolution) == []
    (only,) = resolution.targets
    return only


def carved(only: GpuTarget) -> tuple[dict[str, int], dict[int, str]]:
    """Instances by profile, and types by VF."""
    return (
        dict(Counter(instance.profile_name for instance in only.instances)),
        {vgpu.vf_index: vgpu.type_name for vgpu in only.vgpus},
    )


H200 = gpu("0000:17:00.0", 0)
A100 = a100("0000:3b:00.0", 0)
RTX_PRO = rtx_pro("0000:41:00.0", 0)


# --------------------------------------------------------------------------- which GPUs


def test_s1_a_missing_address_lists_the_nearest_that_exist() -> None:
    text = config(
        """
        - match: {pci: ["0000:17:00.0", "0000:5e:00.0"]}
          profile: bare
        """,
        bare="{mode: none}",
    )
    resolution = resolved(text, *hgx_h200()[:4])
    assert complaints(resolution) == [
        "c.yaml:5:33: gpus[0].match.pci: The configuration names 0000:5e:00.0, which this node does not have (there are 0000:60:00.0, 0000:70:00.0, 0000:3d:00.0, 0000:17:00.0); did you mean 0000:60:00.0?"
    ]
    assert resolution.problems[0].code is Code.GPU_MISSING


def test_s1_with_on_missing_degrade_the_others_are_targets() -> None:
    text = config(
        """
        - match: {pci: ["0000:17:00.0", "0000:5e:00.0"]}
          profile: bare
          on-missing: degrade
        """,
        bare="{mode: none}",
    )
    resolution = resolved(text, *hgx_h200())
    assert target(resolution).pf == PF_17
    ((entry, wanted, finding),) = resolution.missing
    assert (entry.path, wanted, finding.code) == ("gpus[0]", "0000:5e:00.0", Code.GPU_MISSING)


def test_s1_a_node_without_any_gpu() -> None:
    resolution = resolved(
        config(
            '- match: {uuid: "GPU-00000001-0000-0000-0000-000000000000"}\n  profile: {mode: none}'
        )
    )
    assert complaints(resolution) == [
        "c.yaml:3:17: gpus[0].match.uuid: The configuration names a GPU with UUID GPU-00000001-0000-0000-0000-000000000000, which this node does not have (there is no NVIDIA GPU)"
    ]


COUNTED = """
- match: {device: "0x2335", count: 8}
  profile: {mode: none}
"""


def test_s2_seven_of_eight_cards_says_which_slots_hold_cards() -> None:
    resolution = resolved(config(COUNTED), *hgx_h200()[:7])
    assert complaints(resolution) == [
        "c.yaml:3:19: gpus[0].match.device: The configuration expects 8 cards of device 0x2335; 7 are there (0000:17:00.0, 0000:3d:00.0, 0000:60:00.0, 0000:70:00.0, 0000:98:00.0, 0000:ba:00.0, 0000:dd:00.0)"
    ]
    assert resolution.problems[0].code is Code.GPU_COUNT


def test_s2_with_on_missing_degrade_seven_are_targets() -> None:
    resolution = resolved(config(COUNTED + "  on-missing: degrade"), *hgx_h200()[:7])
    assert complaints(resolution) == []
    assert len(resolution.targets) == 7
    assert [finding.code for _, _, finding in resolution.missing] == [Code.GPU_COUNT]


def test_more_cards_than_expected_is_a_mistake_even_with_degrade() -> None:
    text = config(COUNTED.replace("count: 8", "count: 7") + "  on-missing: degrade")
    assert [p.code for p in resolved(text, *hgx_h200()).problems] == [Code.GPU_COUNT]


def test_r10_a_card_that_nvml_lost_is_still_counted() -> None:
    *others, last = hgx_h200()
    resolution = resolved(config(COUNTED), *others, unread(last, "nvidia"))
    assert complaints(resolution) == []
    assert len(resolution.targets) == 8


def test_s9_two_entries_for_one_gpu_are_both_named() -> None:
    text = config(
        """
        - match: {pci: "0000:17:00.0"}
          profile: bare
        - match: {index: 0}
          profile: bare
        """,
        bare="{mode: none}",
    )
    resolution = resolved(text, *hgx_h200()[:2])
    assert complaints(resolution) == [
        "c.yaml:7:18: gpus[1].match.index: 0000:17:00.0 is matched by gpus[0] (c.yaml:5:16) and by gpus[1] (c.yaml:7:18)"
    ]
    assert resolution.problems[0].code is Code.GPU_OVERLAP


def test_a_model_means_the_cards_that_are_not_named_more_precisely() -> None:
    text = config(
        """
        - match: {device: "0x2335", count: 6}
          profile: {mode: none}
        - match: {pci: ["0000:17:00.0", "0000:3d:00.0"]}
          profile: {mode: passthrough}
        """
    )
    resolution = resolved(text, *hgx_h200())
    assert complaints(resolution) == []
    assert [each.mode.value for each in resolution.targets] == ["passthrough"] * 2 + ["none"] * 6


def test_s11_only_the_device_that_is_named_becomes_a_target() -> None:
    t4 = gpu("0000:5e:00.0", 1, device_id=0x1EB8, profiles=(), types=(), vf_count=16)
    assert t4.facts is not None
    t4 = replace(t4, facts=replace(t4.facts, host_vgpu_mode=HostVgpuMode.NON_SRIOV))
    text = config('- match: {device: "0x20f1"}\n  profile: {mode: none}')
    resolution = resolved(text, A100, t4, a100("0000:d8:00.0", 2))
    assert [str(each.pf) for each in resolution.targets] == ["0000:3b:00.0", "0000:d8:00.0"]
    assert resolution.unclaimed == ()


def test_s12_an_address_in_another_domain() -> None:
    text = config('- match: {pci: "00000001:04:00.0"}\n  profile: {mode: none}')
    assert target(resolved(text, gpu("0001:04:00.0", 0), H200)).pf == Bdf.parse("0001:04:00.0")


def test_s15_a_passed_through_gpu_needs_no_facts() -> None:
    text = config('- match: {pci: "0000:17:00.0"}\n  profile: {mode: passthrough}')
    only = target(resolved(text, unread(H200, "vfio-pci")))
    assert (only.mode, only.mig, only.vgpus) == (Mode.PASSTHROUGH, False, ())


def test_subsystem_narrows_a_device_match() -> None:
    other = replace(H200, pci=replace(H200.pci, bdf=PF_3D, subsystem_id=0x18BF))
    text = config('- match: {device: "0x2335", subsystem: "0x18be"}\n  profile: {mode: none}')
    assert target(resolved(text, H200, other)).pf == PF_17


def test_device_that_no_card_has() -> None:
    text = config('- match: {device: "0x2330"}\n  profile: {mode: none}')
    assert complaints(resolved(text, H200)) == [
        "c.yaml:3:19: gpus[0].match.device: The configuration names a card of device 0x2330, which this node does not have (there are 0x2335 at 0000:17:00.0)"
    ]


class TestByIdentity:
    """UUID, serial and index: what only NVML can tell."""

    def by(self, match: str, *rest: str) -> str:
        entries = [f"- match: {{{each}}}\n  profile: {{mode: none}}\n" for each in (match, *rest)]
        return config("".join(entries))

    def test_each_names_its_card(self) -> None:
        text = self.by(
            "uuid: gpu-00000000-0000-0000-0000-000000000000", 'serial: "1650000000002"', "index: 1"
        )
        assert [each.pf for each in resolved(text, *hgx_h200()).targets] == [PF_17, PF_3D, PF_60]
        assert resolved(text, *hgx_h200()).problems == ()

    def test_r9_a_swapped_card_is_shown_with_its_new_uuid_and_slot(self) -> None:
        text = self.by("uuid: GPU-00000000-0000-0000-0000-000000000000", "index: 1")
        new = gpu("0000:17:00.0", 0)
        assert new.facts is not None
        new = replace(
            new, facts=replace(new.facts, uuid="GPU-99999999-0000-0000-0000-000000000000")
        )
        assert complaints(resolved(text, new, hgx_h200()[1])) == [
            "c.yaml:3:17: gpus[0].match.uuid: The configuration names a GPU with UUID GPU-00000000-0000-0000-0000-000000000000, which this node does not have (there are GPU-99999999-0000-0000-0000-000000000000 at 0000:17:00.0, GPU-00000001-0000-0000-0000-000000000000 at 0000:3d:00.0); did you mean GPU-99999999-0000-0000-0000-000000000000?"
        ]

    def test_r9_by_address_the_new_card_is_taken(self) -> None:
        text = config('- match: {pci: "0000:17:00.0"}\n  profile: {mode: none}')
        new = with_serial(H200, "1659999999999")
        assert (
            target(resolved(text, new, remembered={PF_17: Card(None, "1650000000000")})).pf == PF_17
        )

    @pytest.mark.parametrize("driver", ["nvidia", "pci-pf-stub", None])
    def test_a_stranded_card_is_the_one_that_was_there_and_never_guessed(
        self, driver: str | None
    ) -> None:
        text = self.by("uuid: GPU-00000001-0000-0000-0000-000000000000")
        first, second, *others = hgx_h200()
        cards = (first, unread(second, driver), *others)
        assert [p.code for p in resolved(text, *cards).problems] == [Code.GPU_MISSING]
        known = {PF_3D: Card("GPU-00000001-0000-0000-0000-000000000000", None)}
        resolution = resolved(text, *cards, remembered=known)
        assert complaints(resolution) == []
        assert [each.pf for each in resolution.targets] == [PF_3D]

    def test_two_unread_cards_for_one_uuid_cannot_be_told_apart(self) -> None:
        text = self.by("uuid: GPU-00000000-0000-0000-0000-000000000000")
        first, second, third, *_ = hgx_h200()
        resolution = resolved(text, unread(first, None), unread(second, None), third)
        assert complaints(resolution) == [
            "c.yaml:3:17: gpus[0].match.uuid: The configuration names a GPU with UUID GPU-00000000-0000-0000-0000-000000000000, which this node does not have (there are GPU-00000002-0000-0000-0000-000000000000 at 0000:60:00.0, 0000:17:00.0 and 0000:3d:00.0 cannot be read)"
        ]
        assert resolution.targets == ()

    def test_a_card_that_somebody_passes_through_is_not_taken_for_a_missing_one(self) -> None:
        text = self.by("uuid: GPU-00000077-0000-0000-0000-000000000000")
        resolution = resolved(text, unread(H200, "vfio-pci"), hgx_h200()[1])
        assert [problem.code for problem in resolution.problems] == [Code.GPU_MISSING]

    def test_s15_a_card_to_be_passed_through_is_found_on_vfio_pci(self) -> None:
        text = self.by("uuid: GPU-00000000-0000-0000-0000-000000000000").replace(
            "none", "passthrough"
        )
        assert target(resolved(text, unread(H200, "vfio-pci"), hgx_h200()[1])).pf == PF_17

    def test_a_remembered_serial_names_the_stranded_card(self) -> None:
        text = self.by('serial: "1650000000001"')
        first, second, *_ = hgx_h200()
        remembered = {
            PF_17: Card(None, "1650000000000"),
            PF_3D: Card(None, "1650000000001"),
        }
        resolution = resolved(
            text, unread(first, None), unread(second, None), remembered=remembered
        )
        assert target(resolution).pf == PF_3D

    def test_an_index_means_the_same_card_while_one_before_it_is_stranded(self) -> None:
        first, second, third, *_ = hgx_h200()
        assert third.facts is not None
        shifted = replace(third, facts=replace(third.facts, nvml_index=1))
        text = self.by("index: 2", "index: 0")
        resolution = resolved(text, first, unread(second, "pci-pf-stub"), shifted)
        assert [each.pf for each in resolution.targets] == [PF_17, PF_60]

    def test_an_index_is_no_name_where_the_order_is_not_that_of_the_bus(self) -> None:
        first, second, third, *_ = hgx_h200()
        assert third.facts is not None
        assert first.facts is not None
        crossed = (
            replace(first, facts=replace(first.facts, nvml_index=1)),
            unread(second, None),
            replace(third, facts=replace(third.facts, nvml_index=0)),
        )
        assert [p.code for p in resolved(self.by("index: 0"), *crossed).problems] == [
            Code.GPU_MISSING
        ]

    def test_without_a_driver_names_are_not_called_missing(self) -> None:
        problem = Finding.of(Code.DRIVER_NOT_LOADED, detail="no such module")
        dark = node(
            *(unread(each, "nvidia") for each in hgx_h200()),
            driver=DriverInfo(None, None, problem),
        )
        text = self.by("uuid: GPU-00000000-0000-0000-0000-000000000000", "index: 3")
        resolution = resolve(parse(text, "c.yaml"), dark, {})
        assert complaints(resolution) == []
        assert len(resolution.targets) == 2


class TestN10MovedCards:
    BY_SLOT = config('- match: {pci: "0000:17:00.0"}\n  profile: {mode: none}')
    REMEMBERED: Mapping[Bdf, Card] = {PF_17: Card(None, "known")}

    def test_n10_says_where_the_known_card_is_now(self) -> None:
        first, second, *_ = hgx_h200()
        resolution = resolved(
            self.BY_SLOT,
            with_serial(first, "stranger"),
            with_serial(second, "known"),
            remembered=self.REMEMBERED,
        )
        assert complaints(resolution) == [
            "c.yaml:3:16: gpus[0].match.pci: 0000:17:00.0 holds a card that this configuration was not made for; the card with serial known that was there is now at 0000:3d:00.0; did you mean 0000:3d:00.0?"
        ]
        assert resolution.targets == ()

    def test_an_empty_slot_says_where_its_card_went(self) -> None:
        _, second, *_ = hgx_h200()
        resolution = resolved(
            self.BY_SLOT, with_serial(second, "known"), remembered=self.REMEMBERED
        )
        assert complaints(resolution) == [
            "c.yaml:3:16: gpus[0].match.pci: The configuration names 0000:17:00.0, which this node does not have (the card that was there is now at 0000:3d:00.0); did you mean 0000:3d:00.0?"
        ]

    @pytest.mark.parametrize(
        ("second_profile", "codes"), [("one", []), ("two", [Code.GPU_MOVED, Code.GPU_MOVED])]
    )
    def test_cards_that_changed_places_matter_only_where_the_profiles_differ(
        self, second_profile: str, codes: list[Code]
    ) -> None:
        text = config(
            f"""
            - match: {{pci: "0000:17:00.0"}}
              profile: one
            - match: {{pci: "0000:3d:00.0"}}
              profile: {second_profile}
            """,
            one="{mode: none}",
            two="{vgpus: {H200X-141C: 1}}",
        )
        first, second, *_ = hgx_h200()
        resolution = resolved(
            text,
            with_serial(first, "b"),
            with_serial(second, "a"),
            remembered={PF_17: Card(None, "a"), PF_3D: Card(None, "b")},
        )
        assert [problem.code for problem in resolution.problems] == codes

    def test_the_same_card_or_one_without_a_serial_is_no_move(self) -> None:
        first, *_ = hgx_h200()
        assert first.facts is not None
        silent = replace(first, facts=replace(first.facts, serial=None))
        for card in (with_serial(first, "known"), silent, unread(first, None)):
            assert resolved(self.BY_SLOT, card, remembered=self.REMEMBERED).problems == ()


def test_n12_a_carved_gpu_that_no_entry_names_is_unclaimed() -> None:
    first, second, third, fourth, *_ = hgx_h200()
    typed = Vf(0, Bdf.parse("3d:00.4"), "nvidia", None, 1414)
    empty = replace(typed, bdf=Bdf.parse("60:00.4"), vgpu_type_id=0)
    text = config('- match: {pci: "0000:17:00.0"}\n  profile: {mode: none}')
    resolution = resolved(
        text,
        replace(first, vfs=(typed,)),
        replace(second, vfs=(typed,)),
        replace(third, vfs=(empty,)),
        fourth,
    )
    assert resolution.unclaimed == (PF_3D,)
    assert target(resolution).pf == PF_17


# --------------------------------------------------------------------------- MIG geometry


@pytest.mark.parametrize(
    ("card", "profile", "expected"),
    [
        pytest.param(
            H200,
            "{mig: {9g.1000gb: 1}}",
            "c.yaml:4:19: gpus[0].profile.mig.9g.1000gb: 0000:17:00.0 has no MIG profile 9g.1000gb (it has: 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb)",
            id="S3",
        ),
        pytest.param(
            H200,
            "{mig: {1g.81gb: 1}}",
            "c.yaml:4:19: gpus[0].profile.mig.1g.81gb: 0000:17:00.0 has no MIG profile 1g.81gb (it has: 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb); did you mean 1g.18gb?",
            id="a slip of the fingers",
        ),
        pytest.param(
            A100,
            "{mig: {1g.5gb: 1, 2g.10gb: 1, 3g.20gb: 1, 4g.20gb: 1}}",
            "c.yaml:4:30: gpus[0].profile.mig.2g.10gb: 0000:3b:00.0 has no room for 2g.10gb in the layout 1g.5gb: 1, 2g.10gb: 1, 3g.20gb: 1, 4g.20gb: 1 (it takes 2 compute slices and 0 of 7 are left); did you mean 4g.20gb: 1, 3g.20gb: 1?",
            id="S5",
        ),
        pytest.param(
            A100,
            "{mig: {1g.10gb: 4, 1g.5gb: 3}}",
            "c.yaml:4:31: gpus[0].profile.mig.1g.5gb: 0000:3b:00.0 has no room for 1g.5gb in the layout 1g.10gb: 4, 1g.5gb: 3 (it takes 1 memory slice and 0 of 8 are left); did you mean 1g.10gb: 4?",
            id="S6",
        ),
        pytest.param(
            H200,
            "{mig: {1g.18gb+me: 2}}",
            "c.yaml:4:19: gpus[0].profile.mig.1g.18gb+me: 0000:17:00.0 has no room for 1g.18gb+me in the layout 1g.18gb+me: 2 (the GPU allows 1 of it); did you mean 1g.18gb+me: 1?",
            id="S7",
        ),
        pytest.param(
            H200,
            "{mig: {3g.71gb: [2], 1g.18gb: 1}}",
            "c.yaml:4:19: gpus[0].profile.mig.3g.71gb: 0000:17:00.0 has no room for 3g.71gb in the layout 3g.71gb: [2], 1g.18gb: 1 (it can start at 0, 4 only, not at 2); did you mean 3g.71gb: [0], 1g.18gb: 1?",
            id="an impossible start",
        ),
        pytest.param(
            H200,
            "{mig: {4g.71gb: [0, 4]}}",
            "c.yaml:4:19: gpus[0].profile.mig.4g.71gb: 0000:17:00.0 has no room for 4g.71gb in the layout 4g.71gb: [0, 4] (it can start at 0 only, not at 4); did you mean 4g.71gb: 1?",
            id="other starts do not help",
        ),
        pytest.param(
            l40s("0000:01:00.0", 0),
            "{mig: {1g.18gb: 7, 1g.18gb+me: 1}}",
            "c.yaml:4:19: gpus[0].profile.mig.1g.18gb: 0000:01:00.0 (NVIDIA L40S) has no MIG, but 1g.18gb needs it",
            id="no MIG",
        ),
    ],
)
def test_a_layout_that_cannot_be(card: ObservedGpu, profile: str, expected: str) -> None:
    resolution = on_one(card, profile)
    assert complaints(resolution) == [expected]
    assert resolution.targets == ()


def test_s4_instances_are_resolved_to_the_ids_of_the_gpu() -> None:
    only = target(on_one(H200, "{mig: {1g.18gb: 3, 4g.71gb: [0]}, compute-instances: true}"))
    assert [(i.gi_profile_id, i.start) for i in only.instances] == [
        (19, None),
        (19, None),
        (19, None),
        (5, 0),
    ]
    assert (only.mig, only.compute_instances, only.vgpus) == (True, True, ())
    assert (only.path, str(only.mark)) == ("gpus[0]", "c.yaml:3:3")


class TestS10:
    def test_s10_the_only_profile_of_that_shape_is_taken_with_a_notice(self) -> None:
        renamed = tuple(
            replace(profile, name="1g.9gb") if profile.name == "1g.10gb" else profile
            for profile in A100.gi_profiles
        )
        resolution = on_one(replace(A100, gi_profiles=renamed), "{mig: {1g.10gb: 2}}")
        assert carved(target(resolution))[0] == {"1g.9gb": 2}
        assert [notice.message for notice in resolution.notices] == [
            "0000:3b:00.0: MIG profile 1g.10gb is taken as 1g.9gb, the only one of that shape on this GPU."
        ]

    def test_s10_two_of_that_shape_are_a_mistake(self) -> None:
        first, *others = A100.gi_profiles
        two = (replace(first, name="1g.9gb"), replace(first, name="1g.11gb", gi_profile_id=90))
        resolution = on_one(replace(A100, gi_profiles=(*two, *others[3:])), "{mig: {1g.10gb: 1}}")
        assert complaints(resolution) == [
            "c.yaml:4:19: gpus[0].profile.mig.1g.10gb: 0000:3b:00.0 has no MIG profile 1g.10gb (it has: 1g.9gb, 1g.11gb, 3g.20gb, 4g.20gb, 7g.40gb); did you mean 1g.11gb?"
        ]

    @pytest.mark.parametrize("name", ["1g.18gb+gfx", "1g.24gb", "2g.18gb"])
    def test_another_shape_is_never_taken(self, name: str) -> None:
        resolution = on_one(H200, f"{{mig: {{{name}: 1}}}}")
        assert [problem.code for problem in resolution.problems] == [Code.PROFILE_UNKNOWN]


# --------------------------------------------------------------------------- vGPU types


@pytest.mark.parametrize(
    ("card", "written", "meant"),
    [
        (H200, "NVIDIA H200X-1-18C", "NVIDIA H200X-1-18C"),
        (H200, "H200X-1-18C", "NVIDIA H200X-1-18C"),
        (H200, "GRID H200X-1-18C", "NVIDIA H200X-1-18C"),
        (H200, "h200x-1-18c", "NVIDIA H200X-1-18C"),
        (A100, "GRID A100-1-10C", "GRID A100-1-10C"),
        (A100, "NVIDIA A100-1-10C", "GRID A100-1-10C"),
        (RTX_PRO, "DC-1-24Q", "NVIDIA RTX Pro 6000 Blackwell DC-1-24Q"),
        (RTX_PRO, "dc-1-24q", "NVIDIA RTX Pro 6000 Blackwell DC-1-24Q"),
        (
            RTX_PRO,
            "RTX Pro 6000 Blackwell DC-1-24Q",
            "NVIDIA RTX Pro 6000 Blackwell DC-1-24Q",
        ),
        (RTX_PRO, "DC-1-24QGFX", "NVIDIA RTX Pro 6000 Blackwell DC-1-24Q"),
    ],
)
def test_s14_the_ways_to_write_a_type(card: ObservedGpu, written: str, meant: str) -> None:
    only = target(on_one(card, f'{{vgpus: {{"{written}": 1}}}}'))
    assert carved(only)[1] == {0: meant}


def test_s14_an_unknown_type_suggests_the_nearest() -> None:
    resolution = on_one(H200, "{vgpus: {H100XM-1-18C: 1}}")
    assert complaints(resolution) == [
        "c.yaml:4:21: gpus[0].profile.vgpus.H100XM-1-18C: 0000:17:00.0 offers no vGPU type H100XM-1-18C; did you mean H200X-1-18C?"
    ]
    assert resolution.problems[0].code is Code.TYPE_UNKNOWN


def test_the_short_form_of_a_name_is_suggested_for_a_short_form() -> None:
    (problem,) = on_one(RTX_PRO, "{vgpus: {DC-2-47Q: 1}}").problems
    assert problem.nearest == "DC-2-48Q"


def test_a_type_like_no_other_shows_what_types_look_like() -> None:
    assert complaints(on_one(H200, "{vgpus: {GeForce-8Z: 1}}")) == [
        "c.yaml:4:21: gpus[0].profile.vgpus.GeForce-8Z: 0000:17:00.0 offers no vGPU type GeForce-8Z; expected a vGPU type that the GPU offers, such as H200X-1-18C"
    ]


def test_r14_a_media_type_is_never_replaced_by_the_plain_one() -> None:
    without_me = tuple(each for each in H200_TYPES if not each.name.endswith("ME"))
    resolution = on_one(replace(H200, vgpu_types=without_me), "{vgpus: {H200X-1-18CME: 1}}")
    assert complaints(resolution) == [
        "c.yaml:4:21: gpus[0].profile.vgpus.H200X-1-18CME: 0000:17:00.0 offers no vGPU type H200X-1-18CME; did you mean H200X-1-18C?"
    ]
    assert resolution.targets == ()


def test_r14_a_graphics_type_is_not_taken_from_an_instance_without_graphics() -> None:
    resolution = on_one(H200, "{vgpus: {H200X-1-18CGFX: 1}}")
    assert [problem.nearest for problem in resolution.problems] == ["H200X-1-18C"]


def test_a_word_that_ends_several_names_is_ambiguous() -> None:
    types = (
        VgpuType(1, "NVIDIA RTX Pro 6000 Blackwell DC-4Q", 4096, 24, 0, None),
        VgpuType(2, "NVIDIA RTX Pro 5000 DC-4Q", 4096, 24, 0, None),
    )
    assert complaints(on_one(replace(RTX_PRO, vgpu_types=types), "{vgpus: {DC-4Q: 1}}")) == [
        "c.yaml:4:21: gpus[0].profile.vgpus.DC-4Q: 0000:41:00.0: vGPU type DC-4Q can mean NVIDIA RTX Pro 6000 Blackwell DC-4Q or NVIDIA RTX Pro 5000 DC-4Q"
    ]


@pytest.mark.parametrize(
    ("profile", "mig", "on_vfs"),
    [
        pytest.param("{vgpus: {H200X-1-18C: 2}}", {"1g.18gb": 2}, "0 1", id="derived"),
        pytest.param(
            "{vgpus: {H200X-1-18C: 1, H200X-1-18CME: 1, H200X-3-71C: 1}}",
            {"1g.18gb": 1, "1g.18gb+me": 1, "3g.71gb": 1},
            "0 1 2",
            id="one instance of each kind",
        ),
        pytest.param(
            "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: [3, 0]}}",
            {"1g.18gb": 7},
            "0 3",
            id="more instances than vGPUs, pinned to VFs",
        ),
        pytest.param("{vgpus: {H200X-141C: 1}}", {}, "0", id="the whole card"),
    ],
)
def test_vgpus_and_their_instances(profile: str, mig: dict[str, int], on_vfs: str) -> None:
    only = target(on_one(H200, profile))
    assert carved(only)[0] == mig
    assert only.mig == bool(mig)
    assert " ".join(str(vgpu.vf_index) for vgpu in only.vgpus) == on_vfs


def test_requests_take_pinned_vfs_or_the_lowest_that_nobody_pins() -> None:
    only = target(on_one(H200, "{vgpus: {H200X-3-71C: 1, H200X-1-18C: [0, 2], H200X-1-18CME: 1}}"))
    assert carved(only)[1] == {
        0: "NVIDIA H200X-1-18C",
        1: "NVIDIA H200X-3-71C",
        2: "NVIDIA H200X-1-18C",
        3: "NVIDIA H200X-1-18CME",
    }


def test_t9_twenty_vgpus_of_twelve_to_an_instance_need_two_instances() -> None:
    only = target(on_one(RTX_PRO, "{vgpus: {RTX Pro 6000 Blackwell DC-1-2Q: 20}}"))
    assert carved(only)[0] == {"1g.24gb+gfx": 2}
    assert [vgpu.vf_index for vgpu in only.vgpus] == list(range(20))
    assert {vgpu.gi_profile_id for vgpu in only.vgpus} == {50}


def test_t9_another_size_gets_an_instance_of_its_own_without_mixed_size() -> None:
    equal = target(on_one(RTX_PRO, "{vgpus: {DC-1-2Q: 6, DC-1-8C: 1}}".replace("8C", "8Q")))
    mixed = target(on_one(RTX_PRO, "{vgpus: {DC-1-2Q: 6, DC-1-8Q: 1}, mixed-size: true}"))
    assert carved(equal)[0] == {"1g.24gb+gfx": 2}
    assert carved(mixed)[0] == {"1g.24gb+gfx": 1}
    assert (equal.mixed_size, mixed.mixed_size) == (False, True)


@pytest.mark.parametrize(
    ("card", "profile", "expected"),
    [
        pytest.param(
            H200,
            "{mig: {1g.18gb+me: 1, 1g.18gb: 6}, vgpus: {H200X-1-18C: 7}}",
            "c.yaml:4:55: gpus[0].profile.vgpus.H200X-1-18C: 0000:17:00.0: 7 vGPUs of type H200X-1-18C are asked for, but there is room for 6: the type needs GPU instances of profile 1g.18gb",
            id="S13",
        ),
        pytest.param(
            H200,
            "{mig: {2g.35gb: 1}, vgpus: {H200X-1-35C: 1}}",
            "c.yaml:4:40: gpus[0].profile.vgpus.H200X-1-35C: 0000:17:00.0: 1 vGPUs of type H200X-1-35C are asked for, but there is room for 0: the type needs GPU instances of profile 1g.35gb",
            id="S13 equal memory is not the same profile",
        ),
        pytest.param(
            RTX_PRO,
            "{mig: {1g.24gb+gfx: 1}, vgpus: {DC-1-2Q: 13}}",
            "c.yaml:4:44: gpus[0].profile.vgpus.DC-1-2Q: 0000:41:00.0: 13 vGPUs of type DC-1-2Q are asked for, but there is room for 12: the type needs GPU instances of profile 1g.24gb+gfx",
            id="T9 more than one instance takes",
        ),
        pytest.param(
            RTX_PRO,
            "{mig: {1g.24gb+gfx: 1}, vgpus: {DC-1-2Q: 6, DC-1-8Q: 1}}",
            "c.yaml:4:56: gpus[0].profile.vgpus.DC-1-8Q: 0000:41:00.0: vGPUs of different framebuffer sizes (2000 MiB, 8000 MiB) are asked for without mixed-size; expected mixed-size: true, or one size",
            id="T10 on one instance",
        ),
        pytest.param(
            H200,
            "{vgpus: {H200X-1-18C: 8}}",
            "c.yaml:4:21: gpus[0].profile.vgpus.H200X-1-18C: 0000:17:00.0 has no room for 1g.18gb in the layout 1g.18gb: 8 (the GPU allows 7 of it); did you mean 1g.18gb: 7?",
            id="derived instances that do not fit",
        ),
        pytest.param(
            H200,
            "{vgpus: {H200X-4C: 2, H200X-8C: 1}}",
            "c.yaml:4:34: gpus[0].profile.vgpus.H200X-8C: 0000:17:00.0: vGPUs of different framebuffer sizes (4096 MiB, 8192 MiB) are asked for without mixed-size; expected mixed-size: true, or one size",
            id="T10",
        ),
        pytest.param(
            H200,
            "{vgpus: {H200X-70C: 2, H200X-4C: 1}, mixed-size: true}",
            "c.yaml:4:35: gpus[0].profile.vgpus.H200X-4C: 0000:17:00.0: 3 vGPUs are asked for, but they take 147456 MiB of framebuffer and the GPU has 144384 MiB",
            id="mixed sizes beyond the framebuffer",
        ),
        pytest.param(
            H200,
            "{vgpus: {H200X-141C: 2}}",
            "c.yaml:4:21: gpus[0].profile.vgpus.H200X-141C: 0000:17:00.0: 2 vGPUs are asked for, but the GPU takes 1 of H200X-141C",
            id="two whole cards",
        ),
        pytest.param(
            H200,
            "{vgpus: {H200X-1-18C: 1, H200X-35C: 1}}",
            "c.yaml:4:37: gpus[0].profile.vgpus.H200X-35C: 0000:17:00.0: vGPU type H200X-35C is time-sliced and needs MIG off, but H200X-1-18C needs it on",
            id="both kinds of type",
        ),
        pytest.param(
            H200,
            "{mig: {1g.18gb: 7}, vgpus: {H200X-35C: 1}}",
            "c.yaml:4:40: gpus[0].profile.vgpus.H200X-35C: 0000:17:00.0: vGPU type H200X-35C is time-sliced and needs MIG off, but `mig:` turns it on",
            id="time-sliced with mig",
        ),
        pytest.param(
            H200,
            "{vgpus: {H200X-1-18C: [32]}}",
            "c.yaml:4:21: gpus[0].profile.vgpus.H200X-1-18C: 0000:17:00.0 has no VF 32; its 32 VFs are counted from 0",
            id="a VF that cannot be",
        ),
        pytest.param(
            A100,
            "{mig: {1g.5gb: 7}, vgpus: {A100-1-5C: 7, A100-1-5CME: 10}}",
            "c.yaml:4:53: gpus[0].profile.vgpus.A100-1-5CME: 0000:3b:00.0: 17 vGPUs are asked for, but the card has 16 VFs",
            id="more vGPUs than VFs",
        ),
    ],
)
def test_vgpus_that_cannot_be(card: ObservedGpu, profile: str, expected: str) -> None:
    resolution = on_one(card, profile)
    assert expected in complaints(resolution)
    assert len(resolution.problems) == (2 if "has 16 VFs" in expected else 1)
    assert resolution.targets == ()


def test_mixed_sizes_that_fit_are_a_target() -> None:
    only = target(on_one(H200, "{vgpus: {H200X-70C: 1, H200X-35C: 2}, mixed-size: true}"))
    assert (only.mig, only.mixed_size) == (False, True)


class TestMdevUuid:
    def test_it_is_the_same_whatever_else_changes(self) -> None:
        (alone,) = target(on_one(H200, "{vgpus: {H200X-1-18C: [1]}}")).vgpus
        renumbered = tuple(
            replace(each, vgpu_type_id=each.vgpu_type_id + 100, name=f"GRID {each.name[7:]}")
            for each in H200_TYPES
        )
        (later,) = (
            vgpu
            for vgpu in target(
                on_one(
                    replace(H200, vgpu_types=renumbered),
                    "{vgpus: {H200X-3-71C: 1, H200X-1-18C: [1]}}",
                )
            ).vgpus
            if vgpu.vf_index == 1
        )
        assert alone.mdev_uuid == later.mdev_uuid == "d6f09a47-2149-5159-aec9-fa7a8136d56f"
        assert (alone.vgpu_type_id, later.vgpu_type_id) == (1413, 1513)  # T5

    def test_it_differs_by_gpu_vf_and_type(self) -> None:
        uuids = [
            vgpu.mdev_uuid
            for card in hgx_h200()[:2]
            for profile in ("{vgpus: {H200X-1-18C: 2}}", "{vgpus: {H200X-1-18CME: [0]}}")
            for vgpu in target(on_one(card, profile)).vgpus
        ]
        assert len(set(uuids)) == len(uuids) == 6


# --------------------------------------------------------------------------- many GPUs, and ones that are silent


ALL_EIGHT = """
- match: {device: "0x2335"}
  profile: seven
"""


def test_a_mistake_in_a_profile_of_eight_gpus_is_said_once() -> None:
    text = config(ALL_EIGHT, seven="{mig: {1g.18gb: 8}, vgpus: {H200X-1-19C: 7}}")
    assert complaints(resolved(text, *hgx_h200())) == [
        "c.yaml:3:17: profiles.seven.mig.1g.18gb: 0000:17:00.0 (and 7 more) has no room for 1g.18gb in the layout 1g.18gb: 8 (the GPU allows 7 of it); did you mean 1g.18gb: 7?",
        "c.yaml:3:38: profiles.seven.vgpus.H200X-1-19C: 0000:17:00.0 (and 7 more) offers no vGPU type H200X-1-19C; did you mean H200X-1-18C?",
    ]


def test_mistakes_are_in_the_order_of_the_file_whatever_found_them() -> None:
    text = config(
        """
        - match: {pci: "0000:99:00.0"}
          profile: seven
        - match: {pci: "0000:17:00.0"}
          profile: seven
        """,
        seven="{mig: {1g.18gb: 8}}",
    )
    codes = [problem.code for problem in resolved(text, *hgx_h200()).problems]
    assert codes == [Code.LAYOUT_IMPOSSIBLE, Code.GPU_MISSING]


@pytest.mark.parametrize("driver", ["pci-pf-stub", None, "nvidia", "vfio-pci"])
def test_a_silent_gpu_is_judged_by_another_of_its_model(driver: str | None) -> None:
    first, second, *_ = hgx_h200()
    seven = "{vgpus: {H200X-1-18C: 7}}"
    resolution = resolved(config(ALL_EIGHT, seven=seven), unread(first, driver), second)
    assert [each.pf for each in resolution.targets] == [PF_17, PF_3D]
    assert carved(resolution.targets[0])[0] == {"1g.18gb": 7}
    eight = "{vgpus: {H200X-1-18C: 8}}"
    resolution = resolved(config(ALL_EIGHT, seven=eight), unread(first, driver), second)
    assert "(and 1 more)" in resolution.problems[0].message


def test_a_silent_gpu_alone_is_deferred() -> None:
    other_board = replace(hgx_h200()[1], pci=replace(hgx_h200()[1].pci, subsystem_id=0x1))
    for neighbour in (A100, other_board):
        text = config(
            '- match: {pci: "0000:17:00.0"}\n  profile: seven', seven="{vgpus: {H200X-1-18C: 7}}"
        )
        resolution = resolved(text, unread(H200, "pci-pf-stub"), neighbour)
        assert [(pf, entry.path) for pf, entry in resolution.deferred] == [(PF_17, "gpus[0]")]
        assert (resolution.targets, resolution.problems) == ((), ())


def test_a_vgpu_host_that_does_not_say_its_types_yet_is_deferred() -> None:
    resolution = on_one(replace(H200, vgpu_types=()), "{vgpus: {H200X-1-18C: 7}}")
    assert [pf for pf, _ in resolution.deferred] == [PF_17]
    assert resolution.problems == ()


class TestOffAVgpuHost:
    def test_the_instances_are_checked_and_the_types_are_not(self) -> None:
        guest = off_vgpu_host(H200)
        resolution = on_one(guest, "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}")
        assert carved(target(resolution)) == ({"1g.18gb": 7}, {})
        assert resolution.unchecked == (PF_17,)
        resolution = on_one(guest, "{mig: {1g.18gb: 8}, vgpus: {H200X-1-18C: 7}}")
        assert [problem.code for problem in resolution.problems] == [Code.LAYOUT_IMPOSSIBLE]

    def test_types_alone_cannot_be_judged(self) -> None:
        resolution = on_one(off_vgpu_host(H200), "{vgpus: {No-Such-8Z: 700}}".replace("700", "7"))
        assert carved(target(resolution)) == ({}, {})
        assert resolution.unchecked == (PF_17,)


def test_an_empty_configuration_wants_nothing() -> None:
    observed: ObservedNode = node(*hgx_h200())
    desired = replace(parse(config(COUNTED), "c.yaml"), entries=())
    assert resolve(desired, observed, {}) == Resolution((), (), (), (), (), (), ())
