"""The demo: a coordinator and some peers on this machine, watched by one that only watches."""
