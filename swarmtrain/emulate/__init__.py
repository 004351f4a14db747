"""`swarmtrain emulate`: a coordinator and copies of somebody's program on this machine."""
