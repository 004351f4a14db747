#!/bin/sh
# A router as at home: whoever is behind it gets out by its one address, and only answers get in.
#   PORTS  kept: what goes out keeps its port, as most do. random: each connection gets another
#          one, as in many mobile and company networks
set -eu
device() { ip -o -4 address | awk -v outside="$1" '$2 != "lo" && ($4 ~ /^44\./) == outside { print $2 }'; }
outside=$(device 1) inside=$(device 0)
# Docker has told all inside that the way out is the first address of their network: that is ours.
network=$(ip -o -4 route show dev "$inside" proto kernel | cut -d/ -f1)
ip address add "${network%.*}.1" dev "$inside"
[ "${PORTS:-kept}" = kept ] || random=random,fully-random
nft -f - <<RULES
table ip home {
  chain input {
    type filter hook input priority filter;
    iifname "$outside" ct state != { established, related } drop
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state invalid drop
    ct state established,related accept
    iifname "$inside" accept
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    oifname "$outside" masquerade ${random:-}
  }
}
RULES
exec sleep infinity
