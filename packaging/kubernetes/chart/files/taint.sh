# Holds the taint gpu-bootstate/not-ready on this node unless it says that its gate is open, and says
# so of the boot that it is in: the label of the boot before is still there after a reboot.
set -u
taint=gpu-bootstate/not-ready pause=${1:-10}
trap 'kill "$sleeping" 2>/dev/null; exit 0' TERM INT
sleeping=

pass() {
    # Without an answer nothing is known, and nothing is changed.
    said=$(kubectl get node "$NODE_NAME" -o "jsonpath={.metadata.labels.gpu-bootstate/ready}|{.metadata.labels.gpu-bootstate/boot-id}|{.status.nodeInfo.bootID}|{.spec.taints[?(@.key==\"$taint\")].effect}") ||
        return
    ready=${said%%|*} said=${said#*|}
    of=${said%%|*} said=${said#*|}
    boot=${said%%|*} there=${said#*|}
    if [ "$ready" = true ] && [ -n "$boot" ] && [ "$of" = "$boot" ]; then
        [ -z "$there" ] || kubectl taint node "$NODE_NAME" "$taint-"
    else
        [ "$there" = NoSchedule ] || kubectl taint node "$NODE_NAME" "$taint=:NoSchedule" --overwrite
    fi
}

while :; do
    pass
    sleep "$pause" &
    sleeping=$!
    wait "$sleeping"
done
