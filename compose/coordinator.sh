#!/bin/sh
# The coordinator of a run whose peers read the invite from a shared directory.
# The invite is the only line on stdout; whoever has it can come in, so it is for our eyes alone.
set -eu
umask 077
run=${RUN_FILE:-/etc/swarmtrain/run.toml}

# Text that was mounted is the run's, unless its file names another.
if [ -n "$(ls /text 2>/dev/null)" ] && ! grep -q '^\[data\]' "$run"; then
  { cat "$run"; printf '\n[data]\nsource = "/text"\n'; } >/tmp/run.toml
  run=/tmp/run.toml
fi

exec swarmtrain up "$run" \
  --listen 0.0.0.0:8400 --public-host "${PUBLIC_HOST:-coordinator}" >/invite/invite
