"""Programs that we did not write, judged as what they are: whole models, and modules of theirs."""
