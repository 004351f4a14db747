#!/bin/sh
# Debian's PostgreSQL for coordinators that share it. Before it answers for the first time it makes
# the secrets: its own password, and what seals the run's keys.
set -eu
umask 077
data=/var/lib/postgresql/run
bin=$(echo /usr/lib/postgresql/*/bin)

secret() { # NAME
  [ -s "/secrets/$1" ] && return
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"/secrets/$1.new"
  mv "/secrets/$1.new" "/secrets/$1"
}

if [ ! -s "$data/PG_VERSION" ]; then
  secret keys
  secret password
  rm -rf "$data"
  "$bin/initdb" -D "$data" -U swarmtrain -E UTF8 --locale=C --auth=scram-sha-256 --pwfile=/secrets/password >/dev/null
  echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
fi
exec "$bin/postgres" -D "$data" -c listen_addresses='*' -c unix_socket_directories=/tmp
