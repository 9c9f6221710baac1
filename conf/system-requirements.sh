#!/usr/bin/env bash
# What pip cannot bring: Python 3.10 or later, Java 17 or later, and a C compiler for python-qpid-proton, which comes as
# source and is for tests alone.
# Says plainly what is missing, and installs it with apt-get where it may.
# And what some tests want and can do without, as they ask for it themselves: debootstrap for a real RabbitMQ
# (tests/real_rabbitmq/broker.py), a JDK and Maven for RabbitMQ's Java client (tests/server/rabbitmq/interop.py).
#   usage: system-requirements.sh [python] [compiler] [java] [debootstrap] [jdk] [maven]
set -u
python=${PYTHON:-python3}

fail() { echo "spark-streams: $*" >&2; exit 1; }

install() { # install WHAT PACKAGE...; a package may be "one|another|…": the first that this system has
  local what=$1; shift
  local names="${*%%|*}" sudo="" packages=() package choice is="is missing. Install it"
  [[ $what == *" and "* ]] && is="are missing. Install them"
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo="sudo -n"; else
      fail "$what $is, e.g. with: sudo apt-get install $names"
    fi
  fi
  command -v apt-get >/dev/null || fail "$what $is with this system's package manager (Debian calls it: $names)"
  echo "spark-streams: ${what} ${is%%.*}, installed now with apt-get" >&2
  $sudo apt-get update -qq >&2
  for package in "$@"; do
    for choice in ${package//|/ }; do
      apt-cache show "$choice" >/dev/null 2>&1 && break
    done
    packages+=("$choice")
  done
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2 ||
    fail "$what could not be installed. Try: sudo apt-get install ${packages[*]}"
}

need_python() {
  command -v "$python" >/dev/null || install "Python 3.10 or later" python3 python3-venv
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$($python --version) is too old: Python 3.10 or later is needed. Name another one with: make PYTHON=python3.12 …"
  "$python" -c 'import venv, ensurepip' 2>/dev/null || install "Python's venv module" python3-venv
}

need_compiler() {
  local header what=() packages=()
  header=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"] + "/Python.h")')
  if ! command -v cc >/dev/null || ! command -v pkg-config >/dev/null; then
    what+=("a C compiler, with which pip builds python-qpid-proton,") packages+=(gcc libc6-dev pkg-config)
  fi
  if [ ! -f "$header" ]; then
    what+=("Python's C headers ($header)")
    packages+=("$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')")
  fi
  # Both in one sentence: whoever has to ask for them asks once.
  [ ${#what[@]} = 0 ] || install "${what[0]}${what[1]:+ and ${what[1]}}" "${packages[@]}"
  [ -f "$header" ] || fail "Python's C headers are still missing: $header. They belong to the package that $python came with."
}

java_version() { "$1" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p'; }

need_java() {
  local java=java
  [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
  if ! command -v "$java" >/dev/null; then
    [ -n "${JAVA_HOME:-}" ] && fail "JAVA_HOME is $JAVA_HOME, but there is no bin/java in it. Correct it or unset it."
    install "Java 17 or later, which Spark runs on," "openjdk-17-jre-headless|openjdk-21-jre-headless|default-jre-headless"
  fi
  local version
  version=$(java_version "$java")
  [ "${version:-0}" -ge 17 ] || fail "$java is Java ${version:-of an unknown version}; Spark 4 needs 17 or later." \
    "Install it, e.g. with: sudo apt-get install openjdk-17-jre-headless, and let JAVA_HOME point to it."
}

need_jdk() {
  need_java
  command -v "${JAVA_HOME:+$JAVA_HOME/bin/}javac" >/dev/null && return
  [ -n "${JAVA_HOME:-}" ] && fail "JAVA_HOME is $JAVA_HOME, a Java without bin/javac. Let it name a JDK or unset it."
  install "javac, a JDK's compiler," "openjdk-$(java_version java)-jdk-headless|default-jdk-headless"
}

for what in "$@"; do
  case $what in
    python) need_python ;;
    compiler) need_compiler ;;
    java) need_java ;;
    debootstrap) command -v debootstrap >/dev/null || install debootstrap debootstrap ;;
    jdk) need_jdk ;;
    maven) command -v mvn >/dev/null || install Maven maven ;;
    *) fail "unknown requirement '$what': expected python, compiler, java, debootstrap, jdk or maven" ;;
  esac
done
