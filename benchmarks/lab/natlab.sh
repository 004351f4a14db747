#!/bin/bash
# natlab.sh: sites on a public internet of their own, each open or behind a router of its kind; run as root.
#   up [--net RATE:RTT[:LOSS]] [--family 4|6|46] [--refuse] SITE=KIND[:PEERS] ...
#       KIND none        the peer itself sits on the internet
#            cone        full cone: all that comes in goes to the one peer inside (DNAT), ports are kept
#            restricted  masquerades and keeps ports; lets in only what answers
#            symmetric   masquerades with another random port for every connection; lets in only what answers
#            mapped      restricted, and miniupnpd maps ports on request: PCP, NAT-PMP and UPnP IGD
#       --net            Mbit/s each way, ms there and back, per cent lost, of each site (see netlab.sh)
#       --family         addresses: IPv4 alone (default), IPv6 alone (routers then only filter), or both
#       --refuse         routers answer strangers' SYNs with RST; else they drop them
#   limit SITE UP DOWN     Mbit/s of one site (not with an RTT)
#   run SITE[.PEER] CMD    run a command at a peer (0, 1, ...; 0 if not said), or with SITE.router at its router
#   addresses SITE[.PEER]  of each family: FAMILY, the peer's own address, and the one that the internet sees
#   restart SITE           the router forgets all connections and mappings
#   move SITE              restart, with another public address
#   cut SITE | heal SITE   take the line down, up again
#   down                   end every process in the namespaces, remove all that 'up' made
# Every LAN is 192.168.1.0/24, as at home: a private address of elsewhere leads to the wrong machine or nowhere.
# Only namespaces and devices called nt-* are touched; LAB_NET=xy makes that xy-*. The lines are netlab.sh's.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")"); home=${LAB_HOME:-$HOME/.cache/swarmtrain-lab}
nl=${LAB_NET:-nt}; export LAB_NET=$nl; state=$home/nat-$nl; mkdir -p "$state"
# Addresses that every program takes for public, which those for documentation are not: a test network
# of radio amateurs, and a part of the global IPv6 range that nobody has been given.
v4=44.128; v6=2d77; lan=192.168.1
declare -A kind=() peers=() index=() moves=(); names=(); family=4; strangers=drop
fail() { echo "natlab.sh: $*" >&2; exit 2; }
has() { [[ $family == *$1* ]]; }
at() { ip netns exec "$@"; }
router() { echo "$nl-p${index[$1]}"; }
inside() { if [ "${kind[$1]}" = none ]; then router "$1"; else echo "$nl-l${index[$1]}-$2"; fi; }
wan4() { echo "$v4.${moves[$1]}.${index[$1]}"; }
wan6() { echo "$v6::$((moves[$1] + 1)):${index[$1]}"; }
prefix6() { echo "$v6:0:$((moves[$1] + 1)):${index[$1]}:"; }
save() {
  { echo "$family $strangers"; for name in "${names[@]}"; do echo "$name ${kind[$name]} ${peers[$name]} ${index[$name]} ${moves[$name]}"; done; } >"$state/sites"
}
load() {
  local name a b c d
  [ -f "$state/sites" ] || fail "no net is up"
  { read -r family strangers; while read -r name a b c d; do names+=("$name"); kind[$name]=$a; peers[$name]=$b; index[$name]=$c; moves[$name]=$d; done; } <"$state/sites"
}
site() { load; [ -n "${kind[${1:-}]:-}" ] || fail "no site ${1:-}; there are: ${names[*]}"; }
connect() {  # SITE: its public addresses, and the way to who answers nothing
  local space; space=$(router "$1"); ip -n "$space" addr flush dev eth0 scope global
  if has 4; then ip -n "$space" addr add "$(wan4 "$1")/16" dev eth0; ip -n "$space" route replace default via $v4.255.254; fi
  if has 6; then ip -n "$space" addr add "$(wan6 "$1")/64" dev eth0 nodad; ip -n "$space" -6 route replace default via $v6::ffff; fi
}
paths() {  # the ways to IPv6 networks behind routers
  local from to; has 6 || return 0
  for from in "${names[@]}"; do
    for to in "${names[@]}"; do
      [ "$from" = "$to" ] || [ "${kind[$to]}" = none ] || ip -n "$(router "$from")" -6 route replace "$(prefix6 "$to"):/64" via "$(wan6 "$to")"
    done
  done
}
number() {  # SITE: addresses within
  local peer space; [ "${kind[$1]}" != none ] || return 0
  if has 6; then ip -n "$(router "$1")" addr replace "$(prefix6 "$1"):1/64" dev lan nodad; fi
  for peer in $(seq 0 $((peers[$1] - 1))); do
    space=$(inside "$1" "$peer"); ip -n "$space" addr flush dev eth0 scope global
    if has 4; then
      ip -n "$space" addr add "$lan.$((10 + peer))/24" dev eth0; ip -n "$space" route replace default via $lan.1
    fi
    if has 6; then
      ip -n "$space" addr add "$(prefix6 "$1"):$((10 + peer))/64" dev eth0 nodad; ip -n "$space" -6 route replace default via fe80::1 dev eth0
    fi
  done
}
forget() {  # SITE: the kernel's table of connections, which no rule can empty (nfnetlink: delete all)
  at "$(router "$1")" python3 -c 'import socket, struct
kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
kernel.send(struct.pack("=IHHIIBBH", 20, 1 << 8 | 2, 5, 1, 0, 0, 0, 0))
raise SystemExit(struct.unpack("=i", kernel.recv(4096)[16:20])[0])'
}
route() {  # SITE: the router's rules, anew
  local space refused="$strangers" open="" ports=""; space=$(router "$1")
  [ "${kind[$1]}" != none ] || return 0
  [ "$strangers" = drop ] || refused="meta l4proto tcp reject with tcp reset"
  [ "${kind[$1]}" != symmetric ] || ports="random,fully-random"
  [ "${kind[$1]}" != cone ] || open=1
  # What belongs to no known connection is not carried on: TCP would take up a forgotten one in its midst.
  at "$space" sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0
  at "$space" nft -f - <<RULES
flush ruleset
table inet natlab {
  chain miniupnpd {
  }
  chain prerouting_miniupnpd {
  }
  chain postrouting_miniupnpd {
  }
  chain input {
    type filter hook input priority filter; policy accept;
    iifname "eth0" meta l4proto { icmp, ipv6-icmp } accept
    iifname "eth0" ct state established,related accept
    iifname "eth0" $refused
    iifname "eth0" drop
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state invalid $refused
    ct state established,related accept
    meta l4proto ipv6-icmp accept
    iifname "lan" ct state new accept
    ${open:+iifname \"eth0\" ct state new accept}
    jump miniupnpd
    iifname "eth0" $refused
  }
  chain prerouting {
    type nat hook prerouting priority dstnat;
    jump prerouting_miniupnpd
    ${open:+iifname \"eth0\" meta nfproto ipv4 dnat ip to $lan.10}
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    jump postrouting_miniupnpd
    oifname "eth0" meta nfproto ipv4 masquerade $ports
  }
}
RULES
  [ "${kind[$1]}" != mapped ] || map "$1"
}
map() {  # SITE: miniupnpd, which knows nothing of before
  local space conf pid; space=$(router "$1"); conf=$state/miniupnpd-$1
  for pid in $(ip netns pids "$space"); do ! grep -qsx miniupnpd "/proc/$pid/comm" || kill -9 "$pid"; done
  rm -f "$state/miniupnpd-$1.pid"  # it takes a process id of before for another that runs
  cat >"$conf" <<CONF
ext_ifname=eth0
listening_ip=lan
enable_natpmp=yes
enable_upnp=yes
secure_mode=yes
min_lifetime=60
upnp_table_name=natlab
upnp_nat_table_name=natlab
uuid=00000000-0000-4000-8000-0000000000$(printf %02x "${index[$1]}")
allow 1024-65535 $lan.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
CONF
  has 6 || echo ipv6_disable=yes >>"$conf"
  at "$space" miniupnpd -f "$conf" -P "$state/miniupnpd-$1.pid"
}
build() {  # SITE: what is behind its line
  local space peer within; space=$(router "$1")
  [ "${kind[$1]}" != none ] || return 0
  at "$space" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
  ip -n "$space" link add lan type bridge; ip -n "$space" link set lan up
  ip -n "$space" addr add $lan.1/24 dev lan  # miniupnpd wants it, whatever the family
  if has 6; then ip -n "$space" addr add fe80::1/64 dev lan nodad; fi
  for peer in $(seq 0 $((peers[$1] - 1))); do
    within=$(inside "$1" "$peer"); ip netns add "$within"; ip -n "$within" link set lo up
    ip -n "$space" link add "lan$peer" type veth peer name eth0 netns "$within"
    ip -n "$space" link set "lan$peer" master lan up; ip -n "$within" link set eth0 up
    has 6 || at "$within" sysctl -qw net.ipv6.conf.all.disable_ipv6=1
  done
}
case "${1:-}" in
up)
  shift; net=0:0
  while [[ ${1:-} == --* ]]; do
    case $1 in --net) net=$2; shift 2;; --family) family=$2; shift 2;; --refuse) strangers=reset; shift;; *) fail "no option $1";; esac
  done
  [[ $family =~ ^(4|6|46)$ ]] || fail "--family is 4, 6 or 46"
  for word in "$@"; do
    [[ $word =~ ^([a-z0-9-]+)=(none|cone|restricted|symmetric|mapped)(:([1-9]))?$ ]] || fail "not SITE=KIND[:PEERS]: $word"
    name=${BASH_REMATCH[1]}; names+=("$name"); kind[$name]=${BASH_REMATCH[2]}; peers[$name]=${BASH_REMATCH[4]:-1}; index[$name]=${#names[@]}; moves[$name]=0
    [ "${kind[$name]}" != none ] || [ "${peers[$name]}" = 1 ] || fail "$name: one peer sits at an open place"
  done
  [ "${#names[@]}" = "${#kind[@]}" ] && [ "${#names[@]}" != 0 ] || fail "each site wants a name of its own"
  "$0" down; IFS=: read -r rate rtt loss <<<"$net"; "$here/netlab.sh" up $((${#names[@]} + 1)) "$rate" "${rtt:-0}" "${loss:-0}"
  save
  # Peer 0 of netlab.sh is whom all send what they know no way for: it drops that silently.
  ip -n "$nl-p0" addr flush dev eth0 scope global
  if has 4; then ip -n "$nl-p0" addr add $v4.255.254/16 dev eth0; fi
  if has 6; then ip -n "$nl-p0" addr add $v6::ffff/64 dev eth0 nodad; fi
  for name in "${names[@]}"; do build "$name"; done
  for name in "${names[@]}"; do connect "$name"; number "$name"; route "$name"; done; paths
  has 6 || for name in "${names[@]}"; do at "$(router "$name")" sysctl -qw net.ipv6.conf.all.disable_ipv6=1; done;;
limit) site "$2"; exec "$here/netlab.sh" limit "${index[$2]}" "$3" "$4";;
run)
  place=$2; shift 2; name=${place%%.*}; peer=0; [ "$name" = "$place" ] || peer=${place#*.}; site "$name"
  [ "$peer" != router ] || exec ip netns exec "$(router "$name")" "$@"
  exec ip netns exec "$(inside "$name" "$peer")" "$@";;
addresses)
  name=${2%%.*}; peer=0; [ "$name" = "$2" ] || peer=${2#*.}; site "$name"
  if [ "${kind[$name]}" = none ]; then own4=$(wan4 "$name"); own6=$(wan6 "$name"); seen6=$own6
  else own4=$lan.$((10 + peer)); own6=$(prefix6 "$name"):$((10 + peer)); seen6=$own6; fi
  ! has 4 || echo "4 $own4 $(wan4 "$name")"
  ! has 6 || echo "6 $own6 $seen6";;
restart) site "$2"; [ "${kind[$2]}" != none ] || fail "$2 has no router"; forget "$2"; route "$2";;
move)
  site "$2"
  if has 6; then
    for other in "${names[@]}"; do ip -n "$(router "$other")" -6 route del "$(prefix6 "$2"):/64" 2>/dev/null || true; done
    [ "${kind[$2]}" = none ] || ip -n "$(router "$2")" addr del "$(prefix6 "$2"):1/64" dev lan
  fi
  moves[$2]=$((moves[$2] + 1)); save; connect "$2"; number "$2"; paths
  [ "${kind[$2]}" = none ] || { forget "$2"; route "$2"; };;
cut) site "$2"; exec "$here/netlab.sh" cut "${index[$2]}";;
heal) site "$2"; "$here/netlab.sh" heal "${index[$2]}"; connect "$2"; paths;;
down)
  for space in $(ip netns list | awk '{print $1}' | grep -E "^$nl-l[0-9]+-[0-9]+\$" || true); do
    ip netns pids "$space" | xargs -r kill -9 2>/dev/null || true; ip netns del "$space" 2>/dev/null || true
  done
  "$here/netlab.sh" down; rm -f "$state"/*;;
*) sed -n 2,23p "$0"; exit 2;;
esac
