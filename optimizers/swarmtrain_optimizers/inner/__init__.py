"""Inner optimizers that torch does not have in the form needed here. One optimizer, one file.

Inner steps are local: peers need not reach the same bits, so these use torch as it is, but for its
ties to torch's compiler."""
