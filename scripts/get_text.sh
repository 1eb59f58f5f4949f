#!/usr/bin/env bash
# Fetches English text from Debian packages: 33 MB of the documentation of Linux, Perl and git, the text of the first run
# (docs/first-run.md). Downloaded by apt, nothing is installed; checked by SHA-256. Prints the folder of the text.
#
#   scripts/get_text.sh [FOLDER]      default: runs/first/documents
#
# A folder that is there and is the right one is kept. PACKAGES names a folder with the .deb files, where apt has them no
# more: https://snapshot.debian.org keeps every version.
set -euo pipefail
folder=${1:-runs/first/documents}
packages=(
  linux-doc-6.1=6.1.192-3 f18dfe28dcab7bdbf9185be16b9521f5841277a6a96c374a6683a648d5d5fa4f
  perl-doc=5.36.0-7+deb12u4 f4269cff4576d6f02a6756df842988e58451c7e945b08517dd235531b24e48f8
  git-doc=1:2.39.5-0+deb12u3 3c89668a11053a6bafade3de1f611f4613db31e082af63f43d8c5b69ad8795ec
)
text_sha256=ee2c46d0e25afd9ea0651148f7b925cf235aeb6811f26fee31d85a3cd3c31feb

fail() {
  printf 'get_text.sh: %s\n' "$*" >&2
  exit 1
}
# Of the names and the content of all files.
sha256_of_folder() {
  (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1)
}

if [ -d "$folder" ] && [ "$(sha256_of_folder "$folder")" = "$text_sha256" ]; then
  printf '%s\n' "$folder"
  exit 0
fi
[ ! -e "$folder" ] || fail "$folder is there and holds something else"
command -v dpkg-deb >/dev/null || fail "needs Debian's dpkg-deb; first_run.sh --text takes any folder of text files"
[ -z "${PACKAGES:-}" ] || PACKAGES=$(realpath "$PACKAGES")
mkdir -p "$(dirname "$folder")"
folder=$(realpath "$(dirname "$folder")")/$(basename "$folder")
work=$(mktemp -d "$folder.fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir text
for ((i = 0; i < ${#packages[@]}; i += 2)); do
  package=${packages[i]}
  name=${package%%=*}
  if [ -n "${PACKAGES:-}" ]; then
    cp "$PACKAGES/${name}_"*.deb .
  else
    apt-get download -qq -o APT::Sandbox::User= "$package" >&2 ||
      fail "apt has no $package: its lists are old (apt-get update), or Debian has a later one (see PACKAGES)"
  fi
  file=$(echo "${name}"_*.deb)
  [ "$(sha256sum <"$file" | cut -d ' ' -f 1)" = "${packages[i + 1]}" ] || fail "$file has another SHA-256"
  mkdir "$name"
  dpkg-deb -x "$file" "$name"
done
copy() { # FROM TO PATTERN...: the files of a pattern below FROM
  local from=$1 to=$2
  shift 2
  mkdir "text/$to"
  (cd "$from" && find . -type f "$@" -print0 | tar -c --null -T -) | tar -x -C "text/$to"
}
# The sources of Linux' manual without its translations, the manual pages of Perl, those of git.
copy linux-doc-6.1/usr/share/doc/linux-doc-6.1/html/_sources linux -name '*.rst.txt' -not -path './translations/*'
copy perl-doc/usr/share/perl perl -name '*.pod'
copy git-doc/usr/share/doc/git-doc git -name '*.txt'
got=$(sha256_of_folder text)
[ "$got" = "$text_sha256" ] || fail "the text has the SHA-256 $got, not $text_sha256"
mv text "$folder"
printf '%s\n' "$folder"
