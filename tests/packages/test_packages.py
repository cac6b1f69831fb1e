"""The .deb and the .rpm: what is in them, that it runs alone, and what they leave behind."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import pytest

REPO = Path(__file__).parents[2]
NEXT_VERSION = "9.8.7"

# What a package of ours may bring beside files of its own name.
PYTHON = "usr/lib/gpu-bootstate/python"
# Each family's own place for the same thing, or for a thing that only it has.
DEB_ONLY = (
    "usr/share/doc/gpu-bootstate/changelog.gz",
    "usr/share/doc/gpu-bootstate/copyright",
    "usr/share/lintian/overrides/gpu-bootstate",
)
RPM_ONLY = ("usr/share/licenses/gpu-bootstate/LICENSE",)
ZSH_DEB = "usr/share/zsh/vendor-completions/_gpu-bootstate"
ZSH_RPM = "usr/share/zsh/site-functions/_gpu-bootstate"

UNITS = ("gpu-bootstate.service", "gpu-bootstate-regate.path", "gpu-bootstate-ready.target")


def run(
    *args: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(  # noqa: S603
        [str(arg) for arg in args],
        env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{args[0]}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def need(program: str, package: str) -> None:
    if shutil.which(program) is None:
        if os.environ.get("SKIP_BOOT_TESTS") == "1":
            pytest.skip(f"{program} is not installed")
        pytest.fail(f"{program} is missing: apt-get install {package}")


@dataclass(frozen=True, slots=True)
class Built:
    deb: Path
    rpm: Path
    deb_tree: Path  # the .deb, unpacked
    rpm_tree: Path
    next_deb: Path  # a later version, with another README in /etc
    next_rpm: Path
    version: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    need("dpkg-deb", "dpkg")
    need("rpmbuild", "rpm")
    need("rpm2cpio", "rpm2cpio")
    need("cpio", "cpio")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # workers share one build
    out = base / "packages"
    out.mkdir(exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "done").exists():
            build(out)
            (out / "done").touch()
    return Built(
        deb=only(out / "now", "*.deb"),
        rpm=only(out / "now", "*.rpm"),
        deb_tree=out / "deb-tree",
        rpm_tree=out / "rpm-tree",
        next_deb=only(out / "next", "*.deb"),
        next_rpm=only(out / "next", "*.rpm"),
        version=version_of(REPO),
    )


def build(out: Path) -> None:
    # From a tree without .git, as from a release archive: packaging/build takes both from git.
    env = {"SOURCE_DATE_EPOCH": "1700000000", "MAINTAINER": "A Tester <tester@example.org>"}
    env["PYTHON"] = sys.executable  # the system's own may have no pip
    later = out / "later"
    needed = ("gpu_bootstate", "systemd", "config", "docs", "packaging")
    for name in needed:
        shutil.copytree(REPO / name, later / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [REPO / "pyproject.toml", REPO / "LICENSE", *REPO.glob("*.md")]:
        shutil.copy(path, later)
    init = later / "gpu_bootstate/__init__.py"
    # Of the same length and time: a compiled file of the version before fits it as far as Python
    # can see.
    text = init.read_text(encoding="utf-8").replace(version_of(REPO), NEXT_VERSION)
    init.write_text(text, encoding="utf-8")
    readme = later / "packaging/etc-README"
    readme.write_text("The next version's.\n", encoding="utf-8")
    for tree, folder in ((REPO, out / "now"), (later, out / "next")):
        for form in ("deb", "rpm"):
            run(tree / "packaging/build", form, folder, env=env)
    run("dpkg-deb", "-R", only(out / "now", "*.deb"), out / "deb-tree")
    rpm_tree = out / "rpm-tree"
    rpm_tree.mkdir()
    script = 'rpm2cpio "$1" | cpio --quiet -idm'
    run("sh", "-ec", script, "-", only(out / "now", "*.rpm"), cwd=rpm_tree)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def version_of(tree: Path) -> str:
    text = (tree / "gpu_bootstate/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def files(tree: Path) -> dict[str, Path]:
    """Each file by its path on the host."""
    every = {str(path.relative_to(tree)): path for path in tree.rglob("*") if not path.is_dir()}
    return {name: path for name, path in every.items() if not name.startswith("DEBIAN/")}


def text_of(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")


# --- what is in them ------------------------------------------------------------------------------


def expected_places() -> list[tuple[Path, str]]:
    """(file of this repository, its place on a host), for all that goes over as it is."""
    units = REPO / "systemd"
    places = [
        (path, f"usr/lib/systemd/system/{path.name}")
        for pattern in ("*.service", "*.target", "*.path", "*.timer", "*.socket")
        for path in units.glob(pattern)
    ]
    for path in units.glob("*.service.d/*.conf"):
        places.append((path, f"usr/lib/systemd/system/{path.relative_to(units)}"))
    for path in units.glob("*.preset"):
        places.append((path, f"usr/lib/systemd/system-preset/{path.name}"))
    for path in (units / "scripts").iterdir():
        places.append((path, f"usr/lib/gpu-bootstate/{path.name}"))
    for path in units.glob("drop-ins/*.conf"):
        places.append((path, f"usr/share/gpu-bootstate/{path.relative_to(units)}"))
    for path in [REPO / "config/config.yaml", *(REPO / "config/examples").iterdir()]:
        places.append((path, f"usr/share/doc/gpu-bootstate/examples/{path.name}"))
    package = REPO / "gpu_bootstate"
    for path in [*package.rglob("*.py"), *package.rglob("*.json")]:
        places.append((path, f"{PYTHON}/{path.relative_to(REPO)}"))
    return [*places, (units / "tmpfiles.conf", "usr/lib/tmpfiles.d/gpu-bootstate.conf")]


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_what_this_repository_has_is_where_a_host_looks_for_it(built: Built, kind: str) -> None:
    inside = files(built.deb_tree if kind == "deb" else built.rpm_tree)
    wrong = [
        place
        for source, place in expected_places()
        if place not in inside or inside[place].read_bytes() != source.read_bytes()
    ]
    assert wrong == []
    zsh = ZSH_DEB if kind == "deb" else ZSH_RPM
    for place in (
        zsh,
        "usr/share/bash-completion/completions/gpu-bootstate",
        "usr/share/fish/vendor_completions.d/gpu-bootstate.fish",
    ):
        assert "_GPU_BOOTSTATE_COMPLETE" in text_of(inside[place])


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_each_program_has_a_man_page_of_this_version(built: Built, kind: str) -> None:
    inside = files(built.deb_tree if kind == "deb" else built.rpm_tree)
    programs = [Path(name).name for name in inside if re.match(r"usr/s?bin/", name)]
    assert programs == ["gpu-bootstate"]
    page = text_of(inside["usr/share/man/man8/gpu-bootstate.8.gz"])
    assert page.startswith(f'.TH GPU-BOOTSTATE 8 "" "gpu-bootstate {built.version}" ')


def test_both_packages_hold_the_same_files(built: Built) -> None:
    def content(tree: Path, own: Sequence[str], zsh: str) -> dict[str, tuple[str, str]]:
        return {
            "completions/zsh" if name == zsh else name: (
                stat.filemode(path.lstat().st_mode),
                hashlib.sha256(path.read_bytes()).hexdigest(),
            )
            for name, path in files(tree).items()
            if name not in own
        }

    in_deb = content(built.deb_tree, DEB_ONLY, ZSH_DEB)
    in_rpm = content(built.rpm_tree, RPM_ONLY, ZSH_RPM)
    assert in_deb == in_rpm
    # What rpm lists is what it holds, the directories of ours too: they go with the package.
    listed = run("rpm", "-qlp", built.rpm).stdout.split()
    below_ours = {
        f"/{path.relative_to(built.rpm_tree)}"
        for path in built.rpm_tree.rglob("*")
        if any("gpu-bootstate" in part for part in path.relative_to(built.rpm_tree).parts)
    }
    assert below_ours == set(listed)


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_everything_belongs_to_root_and_only_root_can_write(built: Built, kind: str) -> None:
    if kind == "deb":
        # -rw-r--r-- root/root SIZE DATE TIME ./NAME
        rows = [line.split() for line in run("dpkg-deb", "-c", built.deb).stdout.splitlines()]
        found = {row[5]: (row[0], row[1]) for row in rows}
    else:
        form = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\n]"
        rows = [
            row.split() for row in run("rpm", "-qp", "--qf", form, built.rpm).stdout.splitlines()
        ]
        found = {row[2]: (row[0], row[1]) for row in rows}
    allowed = {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"}
    assert len(found) > 100
    assert {k: v for k, v in found.items() if v[0] not in allowed or v[1] != "root/root"} == {}


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_it_is_one_package_for_every_machine(built: Built, kind: str) -> None:
    """Pure Python, of the libraries that we name and no others, and nothing of the build host."""
    if kind == "deb":
        fields = run("dpkg-deb", "--field", built.deb, "Architecture", "Version").stdout.split()
        assert fields == ["Architecture:", "all", "Version:", built.version]
    else:
        fields = run(
            "rpm", "-qp", "--qf", "%{ARCH} %{VERSION}-%{RELEASE}", built.rpm
        ).stdout.split()
        assert fields == ["noarch", f"{built.version}-1"]

    inside = files(built.deb_tree if kind == "deb" else built.rpm_tree)
    compiled = [
        name
        for name, path in inside.items()
        if path.is_symlink()
        or path.suffix in (".so", ".pyc", ".pyd", ".a", ".o")
        or path.read_bytes()[:4] == b"\x7fELF"
    ]
    assert compiled == []

    roots = {name.split("/")[4] for name in inside if name.startswith(f"{PYTHON}/")}
    distributions = {root.partition("-")[0] for root in roots if root.endswith(".dist-info")}
    assert {name.replace("_", "-").lower() for name in distributions} == {
        "gpu-bootstate", "click", "nvidia-ml-py", "pyudev", "pyyaml", "sdnotify",
    }  # fmt: skip
    assert {root for root in roots if not root.endswith(".dist-info")} == {
        "__main__.py", "click", "gpu_bootstate", "pynvml.py", "pyudev", "sdnotify", "yaml",
    }  # fmt: skip

    homes = {str(REPO), sys.prefix, sys.base_prefix, str(Path.home()), str(built.deb.parents[1])}
    scratch = {str(Path(gettempdir(), start)) for start in ("tmp.", "pip-")}
    places = [*(homes - {"/", "/usr"}), *scratch, "site-packages/", "dist-packages/"]
    told = [
        (name, place)
        for name, path in inside.items()
        for place in places
        if place.encode() in path.read_bytes()
    ]
    assert told == []


# /usr/lib/gpu-bootstate/config.d is the image builder's, so it need not be there.
OURS = re.compile(
    r"/usr/(?:bin|lib|share|share/doc)/gpu-bootstate(?![\w-])(?:/(?!config\.d)[\w.@/-]*\w)?"
)


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_what_units_scripts_and_pages_refer_to_is_there(built: Built, kind: str) -> None:
    tree = built.deb_tree if kind == "deb" else built.rpm_tree
    texts = {n: text_of(p) for n, p in files(tree).items() if not n.startswith(f"{PYTHON}/")}
    if kind == "deb":
        for path in (tree / "DEBIAN").glob("p*"):
            texts[path.name] = path.read_text(encoding="utf-8")
    else:
        texts["scriptlets"] = run("rpm", "-qp", "--scripts", built.rpm).stdout
    referred = [
        (name, line, target)
        for name, text in texts.items()
        for line in text.splitlines()
        for target in OURS.findall(line.replace("\\-", "-"))
    ]
    commands = [r for r in referred if re.match(r"\s*Exec\w+=", r[1])]
    assert len(commands) >= 9
    assert {r for r in referred if not (tree / r[2].lstrip("/")).exists()} == set()
    assert {r for r in commands if not os.access(tree / r[2].lstrip("/"), os.X_OK)} == set()
    # In scripts a path of ours that is a file there is a program.
    scripts = {
        r
        for r in referred
        if texts[r[0]].startswith("#!") and not r[1].startswith("#") and r[2] != f"/{PYTHON}"
    }
    assert {r for r in scripts if not os.access(tree / r[2].lstrip("/"), os.X_OK)} == set()
    for name, path in files(tree).items():
        if path.read_bytes()[:2] == b"#!" and not name.startswith(f"{PYTHON}/"):
            assert os.access(path, os.X_OK), f"{name} is a script and cannot be run"


def test_files_in_etc_are_the_admins_to_edit(built: Built) -> None:
    in_etc = {f"/{name}" for name in files(built.deb_tree) if name.startswith("etc/")}
    assert in_etc == {"/etc/gpu-bootstate/README"}
    conffiles = (built.deb_tree / "DEBIAN/conffiles").read_text(encoding="utf-8").split()
    assert set(conffiles) == in_etc
    rows = run(
        "rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEFLAGS:fflags} %{FILEMODES:perms}\n]", built.rpm
    )
    flags = [row.split() for row in rows.stdout.splitlines() if row.startswith("/etc/")]
    # c: %config, n: noreplace
    assert {row[0]: row[1] for row in flags if len(row) == 3} == dict.fromkeys(in_etc, "cn")


# --- it runs alone --------------------------------------------------------------------------------

# Runs the directory as `python DIR` does, then says which modules came from neither it nor the
# standard library.
ALONE = """
import pathlib, runpy, sys, sysconfig
home = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(home))
try:
    runpy.run_path(str(home), run_name="__main__")
finally:
    std = pathlib.Path(sysconfig.get_path("stdlib")).resolve()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        where = pathlib.Path(path).resolve() if path else std
        if "site-packages" in where.parts or not {home, std} & set([where, *where.parents]):
            print("not ours:", path, file=sys.stderr)
"""


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_the_unpacked_program_brings_a_simulated_node_up_without_any_library_of_the_host(
    built: Built, tmp_path: Path, kind: str
) -> None:
    tree = built.deb_tree if kind == "deb" else built.rpm_tree
    alone = (sys.executable, "-I", "-S", "-B", "-c", ALONE, tree / PYTHON)
    version = run(*alone, "--version")
    assert version.stdout == f"gpu-bootstate, version {built.version}\n"
    node = ("--simulate", "hgx-h200-8", "--sim-dir", tmp_path)
    example = tree / "usr/share/doc/gpu-bootstate/examples/config.yaml"
    ready = tmp_path / "root/run/gpu-bootstate/ready"
    assert not ready.exists()
    applied = run(*alone, *node, "--config", example, "apply")
    assert ready.is_file()
    assert "not ours" not in version.stderr + applied.stderr


# --- installed, upgraded, taken away --------------------------------------------------------------

# A copy of this host that nothing outlives: what is written goes to a tmpfs of this mount
# namespace. The packages lie in /packages there.
THROWAWAY = """
work=$(mktemp -d)
trap 'rmdir "$work" 2>/dev/null || :' EXIT
mount -t tmpfs throwaway "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" throwaway "$work/root"
mount --rbind /dev "$work/root/dev"
mount -t tmpfs run "$work/root/run"
mkdir -p "$work/root/packages"
mount --bind "$1" "$work/root/packages"
cd /
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
    chroot "$work/root" sh -ec "$2"
umount -R "$work"
"""


@dataclass(frozen=True, slots=True)
class Manager:
    """How a package comes and goes, as shell."""

    name: str
    install: str
    upgrade: str
    remove: str
    kept: str  # where an edited file of /etc is after a removal


# Debian 12's rpm would rather not, and Debian 13's knows no such option.
RPM = "rpm $(rpm --help | grep -o -- --force-debian || :)"
MANAGERS = [
    # A dialogue about an edited conffile gets its default answer. Without dependencies: what the
    # host of the tests lacks is not the question.
    Manager(
        "deb",
        install="dpkg --force-depends -i /packages/now/*.deb >/dev/null",
        upgrade="dpkg --force-depends --force-confdef -i /packages/next/*.deb >/dev/null",
        remove="dpkg -r gpu-bootstate >/dev/null",
        kept="/etc/gpu-bootstate/README",
    ),
    Manager(
        "rpm",
        install=f"{RPM} --nodeps -i /packages/now/*.rpm",
        upgrade=f"{RPM} --nodeps -U /packages/next/*.rpm",
        remove=f"{RPM} -e gpu-bootstate",
        kept="/etc/gpu-bootstate/README.rpmsave",
    ),
]
managers = pytest.mark.parametrize("manager", MANAGERS, ids=lambda m: m.name)


def in_throwaway_host(built: Built, script: str) -> list[str]:
    if os.geteuid() != 0:
        pytest.skip("needs root: installs the package in a throwaway copy of this host")
    need("unshare", "util-linux")
    packages = built.deb.parents[1]
    done = run("unshare", "--mount", "sh", "-ec", THROWAWAY, "-", packages, script)
    assert "gpu-bootstate: not byte-compiled" not in done.stderr
    return done.stdout.splitlines()


EDIT = """
echo 'edited by the admin' >>/etc/gpu-bootstate/README
echo 'version: v1' >/etc/gpu-bootstate/config.yaml
echo 'version: v1' >/etc/gpu-bootstate/config.d/10-site.yaml
"""


def test_the_throwaway_host_leaves_nothing_on_this_one(built: Built) -> None:
    said = in_throwaway_host(built, f"{MANAGERS[0].install}\nls -d /usr/bin/gpu-bootstate")
    assert said == ["/usr/bin/gpu-bootstate"]
    assert not Path("/packages").exists()


@managers
def test_nothing_is_enabled_until_somebody_enables_it_and_then_all_three_are(
    built: Built, manager: Manager
) -> None:
    wants = "/etc/systemd/system/multi-user.target.wants"
    said = in_throwaway_host(
        built,
        f"""
        {manager.install}
        find /etc/systemd/system -name '*gpu-bootstate*'
        echo preset
        systemctl --root=/ preset gpu-bootstate.service gpu-bootstate-regate.path 2>/dev/null
        find /etc/systemd/system -name '*gpu-bootstate*'
        echo enabled
        systemctl --root=/ enable gpu-bootstate 2>/dev/null
        find /etc/systemd/system -name '*gpu-bootstate*' -printf '%p %l\\n' | sort
        """,
    )
    links = [f"{wants}/{unit} /usr/lib/systemd/system/{unit}" for unit in sorted(UNITS)]
    assert [line.replace(" /lib/", " /usr/lib/") for line in said] == ["preset", "enabled", *links]


@managers
def test_an_upgrade_runs_the_new_version_and_leaves_the_admins_files(
    built: Built, manager: Manager
) -> None:
    said = in_throwaway_host(
        built,
        f"""
        {manager.install}
        gpu-bootstate --version
        {EDIT}
        systemctl --root=/ enable gpu-bootstate 2>/dev/null
        {manager.upgrade} 2>/dev/null
        gpu-bootstate --version
        cat /etc/gpu-bootstate/README | tail -n 1
        cat /etc/gpu-bootstate/config.yaml /etc/gpu-bootstate/config.d/10-site.yaml
        ls /etc/systemd/system/multi-user.target.wants | grep gpu-bootstate
        echo compiled without a source:
        cd /usr/lib/gpu-bootstate/python
        find . -name '*.pyc' | sed 's,__pycache__/,,; s,\\.cpython-[0-9]*\\.pyc,.py,' |
            while read -r source; do [ -e "$source" ] || echo "$source"; done
        [ -d gpu_bootstate/__pycache__ ] || echo nothing is compiled
        """,
    )
    assert said == [
        f"gpu-bootstate, version {built.version}",
        f"gpu-bootstate, version {NEXT_VERSION}",
        "edited by the admin",
        "version: v1",
        "version: v1",
        *sorted(UNITS),
        "compiled without a source:",
    ]


@managers
def test_an_upgrade_brings_the_new_text_of_a_file_that_nobody_edited(
    built: Built, manager: Manager
) -> None:
    script = f"{manager.install}\n{manager.upgrade}\ncat /etc/gpu-bootstate/README"
    assert in_throwaway_host(built, script) == ["The next version's."]


@managers
def test_a_removal_takes_the_program_and_leaves_what_the_admin_wrote(
    built: Built, manager: Manager
) -> None:
    said = in_throwaway_host(
        built,
        f"""
        {manager.install}
        {EDIT}
        mkdir -p /var/lib/gpu-bootstate
        echo '{{}}' >/var/lib/gpu-bootstate/last-run.json
        gpu-bootstate --version >/dev/null
        {manager.remove} 2>/dev/null
        find /usr -name '*gpu-bootstate*' -not -path '*/tests/*' -not -path '/usr/src/*'
        cat {manager.kept} | tail -n 1
        cat /etc/gpu-bootstate/config.yaml /etc/gpu-bootstate/config.d/10-site.yaml
        cat /var/lib/gpu-bootstate/last-run.json
        """,
    )
    assert said == ["edited by the admin", "version: v1", "version: v1", "{}"]


def test_a_purge_takes_what_the_program_wrote_and_leaves_the_configuration(built: Built) -> None:
    said = in_throwaway_host(
        built,
        f"""
        {MANAGERS[0].install}
        {EDIT}
        systemctl --root=/ enable gpu-bootstate 2>/dev/null
        mkdir -p /var/lib/gpu-bootstate
        echo '{{}}' >/var/lib/gpu-bootstate/last-run.json
        dpkg -P gpu-bootstate >/dev/null 2>&1
        find /etc /var/lib /usr/lib /usr/bin /usr/share -path '*gpu-bootstate*' | sort
        """,
    )
    assert said == [
        "/etc/gpu-bootstate",
        "/etc/gpu-bootstate/config.d",
        "/etc/gpu-bootstate/config.d/10-site.yaml",
        "/etc/gpu-bootstate/config.yaml",
    ]


def test_a_purge_of_an_unused_package_leaves_nothing(built: Built) -> None:
    said = in_throwaway_host(
        built,
        f"""
        {MANAGERS[0].install}
        gpu-bootstate --version >/dev/null
        dpkg -P gpu-bootstate >/dev/null
        find /etc /var/lib /usr/lib /usr/bin /usr/share -path '*gpu-bootstate*'
        """,
    )
    assert said == []


@managers
def test_a_library_of_the_hosts_own_or_of_the_working_directory_is_not_taken(
    built: Built, manager: Manager
) -> None:
    said = in_throwaway_host(
        built,
        f"""
        {manager.install}
        mkdir /srv/wrong /srv/node && cd /srv/wrong
        for module in click yaml json sitecustomize; do
            echo 'raise SystemExit("wrong module")' >$module.py
        done
        PYTHONPATH=/srv/wrong gpu-bootstate --version
        PYTHONPATH=/srv/wrong gpu-bootstate --simulate hgx-h200-8 --sim-dir /srv/node \\
            --config /usr/share/doc/gpu-bootstate/examples/config.yaml apply >/dev/null 2>&1
        ls /srv/node/root/run/gpu-bootstate/ready
        """,
    )
    assert said == [
        f"gpu-bootstate, version {built.version}",
        "/srv/node/root/run/gpu-bootstate/ready",
    ]


# --- as the distributions' own checkers see them --------------------------------------------------


@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed")
def test_lintian_has_nothing_to_say(built: Built) -> None:
    done = run("lintian", "--allow-root", "--fail-on", "error,warning", built.deb)
    assert done.stdout == ""


@pytest.mark.skipif(shutil.which("rpmlint") is None, reason="rpmlint is not installed")
def test_rpmlint_has_nothing_to_say(built: Built) -> None:
    done = run("rpmlint", "-c", REPO / "packaging/rpm/rpmlint.toml", built.rpm)
    assert "1 packages and 0 specfiles checked; 0 errors, 0 warnings" in done.stdout
