"""Errors that a program may catch when it takes part in a run, under the name that it imports."""

from swarmtrain.foundation.errors import UserError as UserError
from swarmtrain.foundation.errors import render as render
