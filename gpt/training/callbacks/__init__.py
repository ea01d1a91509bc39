"""What happens beside a step: logging, watching, sampling, saving. One file each."""
