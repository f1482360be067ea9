# shellcheck shell=sh
# For scripts of sh that run test programs by themselves; they read it with `.` in the folder of the workspace.

# Builds the test programs that the options of cargo select, and prints a line for each: the folder of its crate in
# `crates`, its name and its path. Cargo names the other programs of a crate too; they are left out.
test_programs() {
    built=$(cargo test -q "$@" --no-run --message-format=json-render-diagnostics) || return 1
    printf '%s\n' "$built" | sed -n 's|.*"manifest_path":"[^"]*/crates/\([^"/]*\)/Cargo.toml".*"target":{[^}]*"name":"\([^"]*\)"[^}]*},"profile":{[^}]*"test":true},.*"executable":"\([^"]*\)".*|\1 \2 \3|p'
}
