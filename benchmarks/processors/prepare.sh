#!/usr/bin/env bash
# prepare.sh FOLDER PACKAGE...: what an emulated ARM processor runs; about a minute, 500 MB.
#   FOLDER/root  Python 3.11 and its C libraries for arm64, of Debian 12: unpacked, not installed
#   FOLDER/site  the packages, as wheels for manylinux_2_28_aarch64
#   FOLDER/fma.so  what saves qemu most of its time on Intel, see fma.c; only where there is a compiler
# Asks Debian's mirrors and PyPI. Changes nothing outside of FOLDER, and needs no root.
set -euo pipefail
folder=$(realpath -m "${1:?FOLDER}"); shift
mkdir -p "$folder"/apt/{state/lists,cache/archives}/partial "$folder"/{debs,root,site}
touch "$folder/apt/status"

arm64_apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= \
    -o Dir::State="$folder/apt/state" -o Dir::State::status="$folder/apt/status" \
    -o Dir::Cache="$folder/apt/cache" "$@"
}

if [ ! -x "$folder/root/usr/bin/python3.11" ]; then
  arm64_apt update
  (cd "$folder/debs" && arm64_apt download \
    python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libstdc++6 libgcc-s1 \
    zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1)
  for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$folder/root"; done
fi
platforms=()
for glibc in 2_28 2_27 2_26 2_24 2_17; do platforms+=(--platform "manylinux_${glibc}_aarch64"); done
python3 -m pip --disable-pip-version-check install --quiet --no-deps --upgrade \
  --target "$folder/site" --python-version 3.11 --implementation cp --only-binary=:all: \
  "${platforms[@]}" --platform manylinux2014_aarch64 "$@"
if grep -qm1 '^flags.*\bfma\b' /proc/cpuinfo && command -v cc >/dev/null; then
  cc -O2 -shared -fPIC -o "$folder/fma.so" "$(dirname "${BASH_SOURCE[0]}")/fma.c"
fi
