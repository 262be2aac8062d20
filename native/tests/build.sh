#!/bin/sh
# Builds the C++ tests, with sanitizers or without: build.sh address|thread|none [TARGET...], into build/sanitize-....
# With clang (CXX=clang++, before the directory is made) there is also rdzv_libfuzzer, for libFuzzer.
set -eu
cd "$(dirname "$0")/../.."
case $1 in
  address) sanitizers=address,undefined ;;
  thread) sanitizers=thread ;;
  none) sanitizers= ;;
  *) echo "usage: $0 address|thread|none [TARGET...]" >&2; exit 2 ;;
esac
build=build/sanitize-$1
shift
PATH=$PWD/.venv/bin:$PATH # where pip has put cmake and ninja
for tool in cmake ninja "${CXX:-c++}"; do
  command -v "$tool" >/dev/null || {
    echo "the C++ tests need $tool; on Debian and Ubuntu: apt-get install g++ cmake ninja-build" >&2
    exit 3
  }
done
cmake -S . -B "$build" -G Ninja -DRDZV_PYTHON=OFF -DRDZV_TESTS=ON -DRDZV_SANITIZE=$sanitizers \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" >/dev/null
MAKEFLAGS= exec ninja -C "$build" --quiet "$@"
