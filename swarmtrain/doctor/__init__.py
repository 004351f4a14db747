"""`swarmtrain doctor`: is this machine fit to take part, and if not, what is to be done?"""
