# Copies the profiles of the mounted ConfigMap to the host's directory: each whole or not at all,
# only when it differs, and takes away what the ConfigMap has no more.
set -u
from=${1:-/profiles} to=${2:-/host} pause=${3:-10}
trap 'kill "$sleeping" 2>/dev/null; exit 0' TERM INT
sleeping=

copy() {
    name=$1 new=$to/.$1.tmp
    if [ -d "$to/$name" ] && [ ! -L "$to/$name" ]; then
        echo "$name: there is a directory of this name on the host"
        return
    fi
    if [ ! -L "$to/$name" ] && cmp -s "$from/$name" "$to/$name"; then
        return
    fi
    # A link in its place, to a directory at that, must not lead anywhere: the name itself goes.
    if rm -rf "$new" && cat "$from/$name" >"$new" && chmod 0644 "$new" &&
        { [ ! -L "$to/$name" ] || rm -f "$to/$name"; } && mv -f "$new" "$to/$name"; then
        echo "$name: copied"
    else
        echo "$name: cannot be copied, tried again in $pause s"
    fi
}

pass() {
    # Without the kubelet's link there is no ConfigMap mounted, and nothing is known.
    [ -L "$from/..data" ] || return
    for file in "$from"/*.yaml; do
        name=${file##*/}
        [ -f "$file" ] || continue
        case $name in
            [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) echo "$name: no name of a profile, ignored" ;;
            *) copy "$name" ;;
        esac
    done
    for file in "$to"/*.yaml; do
        name=${file##*/}
        if [ -f "$file" ] || [ -L "$file" ]; then
            [ -e "$from/$name" ] || { rm -f "$file" && echo "$name: removed"; }
        fi
    done
}

while :; do
    pass
    sleep "$pause" &
    sleeping=$!
    wait "$sleeping"
done
