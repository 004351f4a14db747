#!/bin/sh
# A peer that waits for the invite, then joins. SIGTERM lets it finish its round and leave.
set -eu
trap 'exit 143' TERM INT
until [ -s /invite/invite ]; do
  sleep 1
done
trap - TERM INT
exec swarmtrain join --invite-file /invite/invite --name "${PEER_NAME:-}" --yes
