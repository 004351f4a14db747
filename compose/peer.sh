#!/bin/sh
# A peer that shapes its link, waits for the invite, and joins. SIGTERM lets it finish its round and
# leave.
#   LINK   Mbit/s up / down : round trip in ms, as 10/50:50; empty for no limits. Needs NET_ADMIN.
#   SPAN   stages that it serves, where the model is in stages
set -eu

shape() {
  up=${LINK%%/*} down=${LINK#*/} ms=0
  case $down in *:*) ms=${down#*:} down=${down%%:*} ;; esac
  # A packet passes the sender's end alone: each has half of the round trip, and a router's queue.
  if ! shape-tc qdisc replace dev eth0 root netem limit 1000 \
    delay "$((ms / 2))ms" rate "${up}mbit" 2>/dev/null; then
    echo "This kernel has no netem: the link has its rates, and no delay." >&2
    shape-tc qdisc replace dev eth0 root tbf rate "${up}mbit" burst 64kb latency 200ms
  fi
  set -- dev eth0 handle ffff: ingress
  if ! { shape-tc qdisc replace "$@" && shape-tc filter replace dev eth0 parent ffff: prio 1 \
    matchall action police rate "${down}mbit" burst 256k drop; } 2>/dev/null; then
    echo "This kernel polices nothing: the peer's own cap holds what comes in." >&2
    cap="--down ${down}mbit"
  fi
}

cap=
[ -z "${LINK:-}" ] || shape

trap 'exit 143' TERM INT
# One for each coordinator that has led: any of them names all.
until invite=$(find /invite -type f -name 'invite*' -size +0 | head -n 1) && [ -n "$invite" ]; do
  sleep 0.2
done
trap - TERM INT
# shellcheck disable=SC2086  # a cap is two words
exec swarmtrain join --invite-file "$invite" --name "${PEER_NAME:-}" --yes --wait \
  ${SPAN:+--span "$SPAN"} $cap
