#!/usr/bin/env bash
# Builds the program for aarch64 and runs golden cases in it under qemu: NEON kernels have the bits of all others.
#
#     sudo apt-get install g++-aarch64-linux-gnu qemu-user-static
#     scripts/check_aarch64.sh [FOLDER OF CASES...]      # default: all of test/golden
#
# The libraries of the other architecture are downloaded by apt, from where this system's come, into build/aarch64/root;
# nothing of this machine is changed. JOBS: compilers at once (default: all processors).
set -euo pipefail
cd "$(dirname "$0")/.."
place="$PWD/build/aarch64"
root="$place/root"
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static apt-get dpkg; do
  command -v "$tool" > /dev/null || { echo "skipped: $tool is missing"; exit 77; }
done

packages=(libc6-dev libstdc++-12-dev nlohmann-json3-dev libspdlog-dev libcli11-dev catch2 librapidcheck-dev libzstd-dev
          zlib1g-dev libhwy-dev libssl-dev libcairo2-dev libicu-dev libpcre2-dev libsentencepiece-dev)

fetch_root() {
  local apt="$place/apt"
  mkdir -p "$apt"/{lists/partial,archives/partial} "$root"
  : > "$apt/status"
  local options=(-o Dir::State="$apt" -o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status"
    -o Dir::Cache="$apt" -o Dir::Cache::Archives="$apt/archives" -o APT::Architecture=arm64
    -o APT::Architectures::=arm64 -o Debug::NoLocking=1)
  apt-get "${options[@]}" -qq update
  apt-get "${options[@]}" -qq -y --no-install-recommends --download-only install "${packages[@]}"
  for package in "$apt"/archives/*.deb; do dpkg -x "$package" "$root"; done
  echo "${packages[*]}" > "$place/fetched"
}
[ "$(cat "$place/fetched" 2> /dev/null)" = "${packages[*]}" ] || fetch_root

cat > "$place/toolchain.cmake" << END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT $root)
set(CMAKE_FIND_ROOT_PATH $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L $root)
END
export PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_PATH=
export PKG_CONFIG_LIBDIR="$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig"
cmake -S . -B "$place/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$place/toolchain.cmake" \
  -DSAMBA_BUILD_TESTS=OFF -DSAMBA_CUDA=OFF -DSAMBA_HIP=OFF -DSAMBA_MPI=OFF > "$place/configure.log"
ninja -C "$place/build" -j "${JOBS:-$(nproc)}" samba_cli

samba() { qemu-aarch64-static -L "$root" "$place/build/samba" "$@"; }
samba --version
cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(test/golden)
for folder in "${cases[@]}"; do samba verify --cases "$folder" --device cpu --threads 1; done
