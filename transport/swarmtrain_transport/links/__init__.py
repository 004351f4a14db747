"""Links between peers: their contract, and two ways to keep it, in memory and over ZeroMQ."""
