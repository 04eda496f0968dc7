#!/bin/sh
# Unpacks a Debian package into .venvs/PACKAGE without setting it up, so that no service starts and root is not needed.
#
#   debian.sh PACKAGE FILE [libraries | lacking]
#
# FILE is the file that is needed from the package: if it is there, nothing is done. `libraries` also unpacks those
# libraries that the package depends on and this system lacks, `lacking` everything that it depends on and this system
# lacks.
set -eu

tools=$(cd "$(dirname "$0")/../.." && pwd)/.venvs

libraries() {
    apt-get -s -qq --reinstall --no-install-recommends install "$1" | sed -n "s/^Inst \(lib[^ ]*\) .*/\1/p"
}

lacking() {
    apt-get -s -qq --reinstall --no-install-recommends install "$1" | sed -n "s/^Inst \([^ ]*\) .*/\1/p" | grep -vx "$1"
}

fetch() {
    apt-get -qq -o APT::Sandbox::User=root download "$1" ${2+$("$2" "$1")}
}

if [ -x "$tools/$1/$2" ]; then exit; fi
echo "Installing $1"
downloads=$(mktemp -d)
(cd "$downloads" && { fetch "$1" ${3+"$3"} || { apt-get update -qq && fetch "$1" ${3+"$3"}; }; })
for package in "$downloads"/*.deb; do dpkg-deb -x "$package" "$tools/$1"; done
rm -rf "$downloads"
