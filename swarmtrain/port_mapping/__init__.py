"""Ports that the router of this network is asked to forward: PCP, NAT-PMP and UPnP."""
