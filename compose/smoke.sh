#!/bin/bash
# smoke.sh [PROFILE ...]: each profile for real: from `up` to a falling loss, a container killed and
# one more added, and equal state roots at the end. Needs Docker and the built image.
# Exit status: 0 all is well, 1 something is not, 77 there is no Docker here.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"

docker info >/dev/null 2>&1 || { echo "skipped: no Docker engine answers"; exit 77; }
if docker compose version >/dev/null 2>&1; then compose=(docker compose); else compose=(docker-compose); fi
command -v "${compose[0]}" >/dev/null || { echo "skipped: no docker compose"; exit 77; }
docker image inspect swarmtrain:local >/dev/null 2>&1 || { echo "skipped: build the image first"; exit 77; }

limit_s=${SMOKE_LIMIT_S:-240}
export COMPOSE_PROJECT_NAME=swarmtrain-smoke-$$

status() { docker exec "$container" timeout 10 swarmtrain status --json; }

# What the status says of the run, as words: rounds committed, losses told, first and last loss,
# peers that are there, and the distinct state roots of those that are at the newest round.
look() {
  { status 2>/dev/null || true; } | python3 -c '
import json, sys
try:
    found = json.load(sys.stdin)
except ValueError:
    print("0 0 0 0 0 0"); sys.exit()
losses = [loss for _, loss in sorted((int(op), loss) for op, loss in found["losses"].items())]
there = [p for p in found["peers"] if p["state"] not in ("silent", "disconnected")]
newest = max((p["round"] for p in there), default=0)
roots = {p["state_root"] for p in there if p["round"] == newest and not p.get("stages")}
print(found["committed"], len(losses), *(losses[:1] or [0]), *(losses[-1:] or [0]), len(there), len(roots))
'
}

wait_until() { # WHAT PYTHON-CONDITION over rounds, told, first, last, there, roots
  local end=$((SECONDS + limit_s)) seen
  while :; do
    seen=$(look)
    if python3 -c "
rounds, told, first, last, there, roots = map(float, '$seen'.split())
raise SystemExit(not ($2))"; then return; fi
    if ((SECONDS > end)); then
      echo "$profile: $1 has not come within $limit_s s ($seen)" >&2
      "${compose[@]}" logs --tail 15 >&2
      return 1
    fi
    sleep 1
  done
}

leader() { # of two coordinators the one that leads is asked from now on
  local end=$((SECONDS + limit_s)) one
  while ((SECONDS < end)); do
    for one in first second; do
      container=$("${compose[@]}" ps -q "$one")
      if status 2>/dev/null | grep -q '"term"'; then return; fi
    done
    sleep 1
  done
  echo "$profile: nobody leads within $limit_s s" >&2
  return 1
}

for profile in "${@:-open}"; do
  export COMPOSE_PROFILES=$profile
  coordinator=coordinator kind=$profile peers=4 more=5 named=
  case $profile in
    open) named=dan more=4 ;;
    nat) coordinator=nat-coordinator named=home-4 more=4 ;;
    mixed) kind=mixed-dsl ;;
    pipeline) coordinator=pipeline-coordinator kind=stage-1 peers=6 more=7 ;;
    postgres) coordinator=first ;;
  esac
  trap '"${compose[@]}" down -v --timeout 5 >/dev/null 2>&1' EXIT
  began=$(date +%s.%N)
  "${compose[@]}" up -d >/dev/null 2>&1
  container=$("${compose[@]}" ps -q "$coordinator")
  if [ "$profile" = postgres ]; then leader; fi
  wait_until "a falling loss" "told >= 2 and last < first"
  took=$(python3 -c "print(f'{$(date +%s.%N) - $began:.1f}')")
  echo "$profile: a falling loss $took s after up ($(look | cut -d' ' -f3,4))"

  victim=$("${compose[@]}" ps -q "${named:-$kind}" | head -1)
  docker kill "$victim" >/dev/null
  rounds=$(look | cut -d' ' -f1)
  wait_until "two rounds without the dead" "rounds >= $rounds + 2 and there < $peers"
  if [ -n "$named" ]; then
    "${compose[@]}" up -d "$named" >/dev/null 2>&1
  else
    docker start "$victim" >/dev/null
    count=$(("$("${compose[@]}" ps -q "$kind" | wc -l)" + 1))
    "${compose[@]}" up -d --scale "$kind=$count" >/dev/null 2>&1
  fi
  rounds=$(look | cut -d' ' -f1)
  wait_until "all there again, with equal roots" "there >= $more and rounds >= $rounds + 2 and roots <= 1"
  echo "$profile: one was killed, $more are there, round $(look | cut -d' ' -f1), equal roots"
  if [ "$profile" = postgres ]; then
    rounds=$(look | cut -d' ' -f1)
    docker kill "$container" >/dev/null
    leader
    wait_until "two rounds after another coordinator took over" "there >= $more and rounds >= $rounds + 2"
    echo "$profile: the coordinator was killed, another leads, round $(look | cut -d' ' -f1)"
  fi
  "${compose[@]}" down -v --timeout 5 >/dev/null 2>&1
done
