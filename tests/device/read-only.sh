#!/usr/bin/env bash
# Shows every read path on a machine with a real GPU and driver, and that nothing was changed.
# It runs no command that changes a GPU. Writes its outputs, serials and UUIDs masked, to a folder:
#   tests/device/read-only.sh FOLDER
set -euo pipefail
out=${1:?a folder for the outputs}
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../..${PYTHONPATH:+:$PYTHONPATH}" NO_COLOR=1
mkdir -p "$out"

mask() { sed -E 's/GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/GPU-00000000-0000-0000-0000-000000000000/g
                 s/("serial": )"[^"]*"/\1"0000000000000"/
                 s/("boot_id": )"[^"]*"/\1"00000000-0000-0000-0000-000000000000"/'; }
state() { nvidia-smi --query-gpu=uuid,mig.mode.current,mig.mode.pending,persistence_mode,ecc.mode.current --format=csv; }
ask() {
    local name=$1 code=0
    shift
    "${limits[@]}" python3 -m gpu_bootstate "$@" >"$out/$name.raw" 2>&1 || code=$?
    { cat "$out/$name.raw"; echo "exit code: $code"; } | mask >"$out/$name"
    rm "$out/$name.raw"
    echo "$name: exit code $code"
}

limits=()
state >"$out/before"
ask status.json status --format json
ask status.txt --config "$here/h200.yaml" status
ask plan.txt --config "$here/h200.yaml" plan
ask check.json check "$here/h200.yaml" --format json
ask export.yaml export
# Once more under limits of the shipped unit that NVIDIA's library might not like.
limits=("$here/like-the-unit.py")
ask limited-status.json status --format json
limits=("$here/like-the-unit.py" timeout 60)
ask limited-plan.txt --config "$here/h200.yaml" plan
diff "$out/plan.txt" "$out/limited-plan.txt" && echo "the same under the limits of the unit"
state >"$out/after"
diff "$out/before" "$out/after" && echo "nothing was changed"
rm "$out/before" "$out/after"
