#!/bin/sh
# A router as at home: whoever is behind it gets out by its one address, and only answers get in.
#   PORTS  kept: what goes out keeps its port, as most do. random: each connection gets another
#          one, as in many mobile and company networks
set -eu
outside=$(ip -o -4 address | awk '$4 ~ /^44\./ { print $2 }')
[ "${PORTS:-kept}" = kept ] || random=random,fully-random
nft -f - <<RULES
table ip home {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state invalid drop
    ct state established,related accept
    iifname != "$outside" accept
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    oifname "$outside" masquerade ${random:-}
  }
}
RULES
exec sleep infinity
