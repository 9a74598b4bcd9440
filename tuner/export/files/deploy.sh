set -eu
admin=${1:-ADDRESS}

# The token that a server of this user has made at its start is in a file that its port names.
case $admin in http://127.0.0.1:* | http://localhost:*)
    port=${admin##*:}
    for folder in "${TMPDIR:-/tmp}" "${XDG_RUNTIME_DIR:-/tmp}"; do
        for file in "$folder"/luthier-*/admin-"${port%%/*}".token; do
            if [ -O "$file" ] && [ -z "${LUTHIER_ADMIN_TOKEN:-}" ]; then
                LUTHIER_ADMIN_TOKEN=$(cat "$file")
            fi
        done
    done ;;
esac

# ask ARGUMENTS: what the admin port answers, and its status behind it
ask() {
    if [ -n "${LUTHIER_ADMIN_TOKEN:-}" ]; then
        printf 'header = "Authorization: Bearer %s"\n' "$LUTHIER_ADMIN_TOKEN" |
            curl -sS -K - -w ' %{http_code}' "$@"
    else
        curl -sS -w ' %{http_code}' "$@"
    fi
}

# deploy MODEL NAME COPIES: a model, as JSON has it, under the names NAME-0, NAME-1, ...
deploy() {
    copy=0
    while [ "$copy" -lt "$3" ]; do
        name=$2-$copy
        copy=$((copy + 1))
        answer=$(ask "$admin/admin/models/$name")
        case $answer in
            *' 200') echo "$name is already deployed"; continue ;;
            *' 404') ;;
            *) echo "deploy.sh: $name: $answer" >&2; exit 1 ;;
        esac
        answer=$(ask -d "{\"model\": $1, \"name\": \"$name\"}" "$admin/admin/models")
        case $answer in
            *' 201') echo "$name is deployed" ;;
            *) echo "deploy.sh: $name: $answer" >&2; exit 1 ;;
        esac
    done
}
