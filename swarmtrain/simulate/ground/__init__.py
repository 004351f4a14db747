"""Time, lanes and conditions of a simulated world, before anything happens in it."""
