#!/usr/bin/env bash
# A Rust that can compile to wasm32, in a private folder, out of Debian's own packages. No root, rustup untouched.
# usage: wasm-rust.sh PREFIX
set -euo pipefail
prefix=${1:?usage: wasm-rust.sh PREFIX}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Security updates move versions: names are taken from the package index, never pinned.
depends() { apt-cache depends "$1" | awk -v re="$2" '/Depends:/ && $2 ~ re {print $2}' | sort -u | tail -1; }
std=$(depends libstd-rust-web-dev '^libstd-rust-web-[0-9]')
[ -n "$std" ] || { echo "the package index has no libstd-rust-web-dev; run apt-get update" >&2; exit 1; }
llvm=$( (apt-cache depends rustc-web; apt-cache depends "$std") | grep -oE 'libllvm[0-9]+' | sort -u | tail -1)
git=$(depends cargo-web '^libgit2')
others=$(apt-cache depends "$git" | awk '/Depends:/ && $2 ~ /^(libhttp-parser|libmbed)/ {print $2}' | sort -u)

cd "$work"
# shellcheck disable=SC2086
apt-get download rustc-web cargo-web rust-web-src libstd-rust-web-dev "$std" "$llvm" "lld-${llvm#libllvm}" "$git" $others >/dev/null
mkdir -p "$prefix.part"
for deb in *.deb; do dpkg -x "$deb" "$prefix.part"; done
LD_LIBRARY_PATH=$prefix.part/usr/lib/x86_64-linux-gnu "$prefix.part/usr/bin/rustc" -V
rm -rf "$prefix"
mv "$prefix.part" "$prefix"
