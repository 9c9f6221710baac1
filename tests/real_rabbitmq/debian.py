"""A Debian file system with RabbitMQ in it, made once by debootstrap and kept in the user's cache folder.

The mirror is the one that this machine's apt uses; nothing is installed on the machine itself. A file system is made
under another name and renamed when it is whole, so that one that was cut short is never used; a lock lets one process
make it while others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SUITES = {"4": "sid", "3": "bookworm"}
"""RabbitMQ's major version to the Debian suite that has it; 3 is 3.10, the oldest that the project supports."""

REQUIREMENTS = Path(__file__).resolve().parents[2] / "conf" / "system-requirements.sh"
DEBOOTSTRAP_TIMEOUT_S = 900
"""It takes half a minute here; a slow mirror gets a quarter of an hour."""


class CannotStart(Exception):
    """This machine cannot run a broker; the text is one line that says why."""


def cache_folder() -> Path:
    """Return where file systems are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-streams"


def root_file_system(major: str) -> Path:
    """Return a folder with the Debian that has RabbitMQ ``major``, made now if there is none in the cache.

    Raises:
        CannotStart: Not root, no debootstrap, no Debian mirror, or debootstrap failed.
    """
    return file_system(f"debian-{SUITES[major]}", SUITES[major], "rabbitmq-server")


def file_system(name: str, suite: str, packages: str) -> Path:
    """Return a folder with a Debian, made now if there is none of that name in the cache.

    Args:
        name: that of the folder.
        suite: Debian's.
        packages: what it has beside the least, with commas between.

    Raises:
        CannotStart: Not root, no debootstrap, no Debian mirror, or debootstrap failed.
    """
    folder = cache_folder() / name
    if os.geteuid() != 0:
        raise CannotStart("only root may use debootstrap and chroot")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock(folder.with_suffix(".lock")):
        if not folder.exists():
            remove_leftovers(folder)
            unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.unfinished-", dir=folder.parent))
            unfinished.chmod(0o755)
            what = packages.partition(",")[0]
            print(f"spark-streams: making a Debian {suite} with {what} in {folder}, once", file=sys.stderr, flush=True)
            try:
                debootstrap(suite, packages, unfinished, log=folder.with_suffix(".log"))
                unfinished.rename(folder)
            finally:
                remove(unfinished)
    return folder


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, waiting for whoever has it; it is given back when its process ends in any way."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def debootstrap(suite: str, packages: str, folder: Path, *, log: Path) -> None:
    """Fill ``folder`` with a minimal Debian and packages; what debootstrap prints goes to ``log``."""
    if shutil.which("debootstrap") is None:
        command = ["bash", str(REQUIREMENTS), "debootstrap"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0 or shutil.which("debootstrap") is None:
            raise CannotStart("the package debootstrap is missing and could not be installed")
    command = ["debootstrap", "--force-check-gpg", "--variant=minbase", f"--include={packages}", suite]
    environment = {**os.environ, **proxies(), "DEBIAN_FRONTEND": "noninteractive"}
    try:
        with log.open("w") as output:
            subprocess.run(
                [*command, str(folder), mirror()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=DEBOOTSTRAP_TIMEOUT_S,
                env=environment,
                check=True,
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"debootstrap of Debian {suite} failed, see {log}") from error
    (folder / "etc/hosts").write_text("127.0.0.1 localhost\n")  # Erlang looks up the host of its node name


def mirror() -> str:
    """Return the address that apt takes this machine's own Debian release from."""
    if shutil.which("apt-get") is None:
        raise CannotStart("this is not a Debian: there is no apt-get, whose mirror would be used")
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    wanted = release.get("VERSION_CODENAME", "").strip('"')
    listing = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    for line in subprocess.run(listing, capture_output=True, text=True, check=False).stdout.splitlines():
        address, _, suite = line.rpartition(" ")
        if suite == wanted and release.get("ID", "").strip('"') == "debian":
            return address
    raise CannotStart("apt has no Debian mirror configured")


def proxies() -> dict[str, str]:
    """Return apt's proxies as the environment variables that debootstrap's downloads obey."""
    found = {}
    for scheme in ("http", "https"):
        command = ["apt-config", "shell", "PROXY", f"Acquire::{scheme}::Proxy"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        if told.startswith("PROXY="):
            found[f"{scheme}_proxy"] = told.strip()[len("PROXY=") :].strip("'")
    return found


def remove_leftovers(folder: Path) -> None:
    """Remove what earlier attempts to make ``folder`` left behind; the caller holds the lock."""
    for unfinished in folder.parent.glob(f"{folder.name}.unfinished-*"):
        remove(unfinished)


def remove(folder: Path) -> None:
    """Remove an unfinished file system; whatever debootstrap still has mounted in it is unmounted, never emptied."""
    if not folder.exists():
        return
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mounted in sorted((place for place in mounts if place.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", mounted], check=False)
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False)
