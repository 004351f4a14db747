"""The simulated peers and their coordinator: production machines on pretended disks and clocks."""
