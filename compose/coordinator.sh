#!/bin/sh
# The coordinator of a run whose peers read the invite from a shared directory.
# The invite is the only line on stdout; whoever has it can come in, so it is for our eyes alone.
set -eu
umask 077
exec swarmtrain up "${RUN_FILE:-/etc/swarmtrain/run.toml}" \
  --listen 0.0.0.0:8400 --public-host "${PUBLIC_HOST:-coordinator}" >/invite/invite
