#!/bin/sh
# On the machine whose disk becomes the image. The files were uploaded to /tmp.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends /tmp/gpu-bootstate_*_all.deb
install -m 0644 /tmp/config.yaml /etc/gpu-bootstate/config.yaml
install -m 0644 /tmp/50-gpu-bootstate.preset /usr/lib/systemd/system-preset/
# A configuration that cannot work ends the build.
gpu-bootstate check --board hgx-h200-8 /etc/gpu-bootstate/config.yaml
# Not --now: the GPUs of the machine that builds are none of our business.
systemctl enable gpu-bootstate.service
systemctl is-enabled gpu-bootstate.service gpu-bootstate-regate.path gpu-bootstate-ready.target
rm -f /tmp/gpu-bootstate_*_all.deb /tmp/config.yaml /tmp/50-gpu-bootstate.preset
