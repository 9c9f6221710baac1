"""The set-up script on machines that lack something, played by a PATH with other commands on it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "conf" / "system-requirements.sh"


class Machine:
    """A folder of commands that is all of PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("bash", "sed", "cat"):
            (folder / name).symlink_to(shutil.which(name) or "")
        self.has("id", "echo 1000")

    def has(self, name: str, does: str) -> None:
        """Put a command there that runs a line of bash."""
        (self.folder / name).write_text(f"#!{shutil.which('bash')}\n{does}\n")
        (self.folder / name).chmod(0o755)

    def needs(self, *what: str, **environment: str) -> tuple[int, str]:
        """Run the script; return exit code and what it says."""
        done = subprocess.run(
            [str(self.folder / "bash"), SCRIPT, *what],
            env={"PATH": str(self.folder), **environment},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr

    def installs(self) -> None:
        """Let it be root's, with an apt-get that notes what it is asked for, and puts a Java 21 there."""
        self.has("id", "echo 0")
        self.has("apt-cache", '[ "$2" != openjdk-17-jre-headless ]')
        java = self.folder / "java"
        self.has(
            "apt-get",
            f'echo "apt-get $*" >&2; [ "$1" != install ] || {{ echo "#!{shutil.which("bash")}" > {java}; '
            f"echo 'echo openjdk version \\\"21.0.1\\\" >&2' >> {java}; /bin/chmod +x {java}; }}",
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "bin")


def test_no_java_and_no_rights_says_what_to_install(machine: Machine) -> None:
    code, said = machine.needs("java")
    assert code == 1
    assert said == (
        "spark-streams: Java 17 or later, which Spark runs on, is missing. Install it, e.g. with: "
        "sudo apt-get install openjdk-17-jre-headless\n"
    )


def test_no_java_is_installed_where_it_may(machine: Machine) -> None:
    machine.installs()
    code, said = machine.needs("java")
    assert code == 0, said
    assert said.splitlines()[1:] == [
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends openjdk-21-jre-headless",
    ]
    assert machine.needs("java") == (0, ""), "what is there is not installed again"


def test_an_old_java_is_named(machine: Machine) -> None:
    machine.has("java", "echo 'openjdk version \"11.0.2\" 2020-01-14' >&2")
    code, said = machine.needs("java")
    assert code == 1 and "java is Java 11; Spark 4 needs 17 or later" in said


def test_java_home_that_leads_nowhere(machine: Machine) -> None:
    code, said = machine.needs("java", JAVA_HOME="/nowhere")
    assert code == 1 and "JAVA_HOME is /nowhere, but there is no bin/java in it" in said


def test_a_java_without_compiler_gets_the_one_of_its_version(machine: Machine) -> None:
    machine.has("java", "echo 'openjdk version \"21.0.1\"' >&2")
    code, said = machine.needs("jdk", "maven")
    assert code == 1 and "javac, a JDK's compiler, is missing" in said and "openjdk-21-jdk-headless" in said
    machine.installs()
    machine.has("apt-get", f'echo "apt-get $*" >&2; [ "$1" != install ] || /bin/touch {machine.folder}/javac')
    code, said = machine.needs("jdk")
    assert code == 0 and "install -y -qq --no-install-recommends openjdk-21-jdk-headless" in said
    machine.has("javac", "")
    code, said = machine.needs("jdk", "maven")
    assert code == 0 and said.splitlines()[-1] == "apt-get install -y -qq --no-install-recommends maven"


def test_a_java_home_without_compiler(machine: Machine, tmp_path: Path) -> None:
    home = Machine(tmp_path / "bin" / "bin")
    home.has("java", "echo 'openjdk version \"17.0.1\"' >&2")
    code, said = machine.needs("jdk", JAVA_HOME=str(machine.folder))
    assert code == 1 and "a Java without bin/javac" in said


def test_no_compiler(machine: Machine) -> None:
    code, said = machine.needs("compiler", PYTHON=sys.executable)
    assert code == 1 and "a C compiler, with which pip builds python-qpid-proton, is missing" in said and "gcc" in said


def test_no_compiler_and_no_headers_is_one_sentence(machine: Machine, tmp_path: Path) -> None:
    machine.has("python3", f'[[ "$*" == *sysconfig* ]] && echo {tmp_path}/Python.h || echo python3.12-dev')
    code, said = machine.needs("compiler")
    assert code == 1
    assert said == (
        "spark-streams: a C compiler, with which pip builds python-qpid-proton, and Python's C headers "
        f"({tmp_path}/Python.h) are missing. Install them, e.g. with: "
        "sudo apt-get install gcc libc6-dev pkg-config python3.12-dev\n"
    )
    machine.has("cc", "")
    machine.has("pkg-config", "")
    _, said = machine.needs("compiler")
    assert said.startswith("spark-streams: Python's C headers (") and said.endswith("apt-get install python3.12-dev\n")


def test_an_old_python_is_named(machine: Machine) -> None:
    machine.has("python3", '[ "$1" = --version ] && echo Python 3.8.1; exit 1')
    code, said = machine.needs("python")
    assert code == 1 and "Python 3.8.1 is too old: Python 3.10 or later is needed" in said


def test_what_is_there_needs_no_word() -> None:
    done = subprocess.run(
        ["bash", SCRIPT, "python"], env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_an_unknown_word_is_refused(machine: Machine) -> None:
    code, said = machine.needs("jave")
    assert code == 1 and "expected python, compiler, java, debootstrap, jdk or maven" in said
