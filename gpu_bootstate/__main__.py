"""`python -m gpu_bootstate`."""

from gpu_bootstate.cli.main import main

main(prog_name="gpu-bootstate")
