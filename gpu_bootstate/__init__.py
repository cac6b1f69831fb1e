"""Brings the vGPU state of a GPU node back after a reboot."""

__version__ = "0.1.0"
