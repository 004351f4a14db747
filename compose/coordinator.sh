#!/bin/sh
# The coordinator of a run whose peers read the invite from a shared directory.
# The invite is the only line on stdout; whoever has it can come in, so it is for our eyes alone.
set -eu
umask 077
run=${RUN_FILE:-/etc/swarmtrain/run.toml}

# Text that was mounted is the run's, unless its file names another. Text that was named and cannot
# be had must not become a run on other text.
found=$(ls /text 2>&1) || unread=1
if [ -n "${TEXT:-}" ] && [ -n "${unread:-}" -o -z "$found" ]; then
  echo "TEXT=$TEXT: no file of it can be read here. ${unread:+$found. }Is that the folder's whole" \
    "path, and may everybody read it (chmod -R a+rX)? Nothing was begun: \`docker-compose down\`," \
    "then \`up\` again." >&2
  exit 78
fi
if [ -z "${unread:-}" ] && [ -n "$found" ] && ! grep -q '^\[data\]' "$run"; then
  { cat "$run"; printf '\n[data]\nsource = "/text"\n'; } >/tmp/run.toml
  run=/tmp/run.toml
fi

# Coordinators that share a database share the secret of the run's keys, too, and each has an invite.
invite=/invite/invite
if [ -n "${STORE:-}" ]; then
  until [ -s /secrets/password ]; do sleep 0.2; done
  PGPASSWORD=$(cat /secrets/password)
  export PGPASSWORD SWARMTRAIN_STORE="$STORE"
  set -- --key-file /secrets/keys
  invite=/invite/invite-$PUBLIC_HOST
fi

exec swarmtrain up "$run" "$@" --linger "${LINGER:-1m}" \
  --listen 0.0.0.0:8400 --public-host "${PUBLIC_HOST:-coordinator}" >"$invite"
